"""Places in the script: what can be named, and what cannot."""

from __future__ import annotations

import sys

import pytest

from gputop_train.probe import sites


@pytest.mark.skipif(sys.version_info < (3, 11), reason="every instruction had a line before 3.11")
def test_an_instruction_without_a_line_has_no_place_and_harms_nothing():
    def stand():
        return sys._getframe()

    stand.__code__ = stand.__code__.replace(co_linetable=b"")
    frame = stand()
    assert frame.f_lineno is None
    assert sites.register(frame.f_code, frame.f_lineno, "sample") == 0
    assert sites.register(frame.f_code, 12, "sample") > 0
