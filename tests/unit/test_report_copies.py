"""Whether copies to the GPU wait, from how the script writes them."""

from __future__ import annotations

import pytest

from gputop_train.model import Site
from gputop_train.report.copies import non_blocking, written


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("x.to('cuda')", False),
        ("x.to(device, torch.half)", False),
        ("x.to(device, non_blocking=False)", False),
        ("x.cuda()", False),
        ("static.copy_(x)", False),
        ("x.to(device, non_blocking=True)", True),
        ("x.to(device, True)", True),
        ("x.to(device, torch.half, True)", True),
        ("x.cuda(0, True)", True),
        ("static.copy_(x, non_blocking=True)", True),
        ("x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)", True),
        ("x, y = x.cuda(non_blocking=True), y.cuda()", None),
        ("x.to(device, non_blocking=fast)", None),
        ("x.to(device, dtype)", None),
        ("x.to(*where)", None),
        ("x.to(**how)", None),
        ("trainer.train()", None),
        ("for x in loader:", None),
    ],
)
def test_a_call_says_whether_it_waits_or_does_not_say(call: str, said: bool | None) -> None:
    assert written(call) is said


def site(call: str, size: int | None = 100, kind: str = "h2d") -> Site:
    return Site(0, 1, kind, "/train.py", 3, "main", call, count=1, bytes=size)


ASKS, WAITS, SILENT = "x.to(d, non_blocking=True)", "x.to(d)", "trainer.train()"


@pytest.mark.parametrize(
    ("sites", "said"),
    [
        ([], None),
        ([site("loss.cpu()", kind="sync")], None),
        ([site(ASKS)], True),
        ([site(ASKS), site(WAITS)], False),
        ([site(ASKS, 1000), site(WAITS, 10)], True),  # a mask is no matter
        ([site(ASKS), site(SILENT)], None),
        ([site(WAITS), site(SILENT)], False),
        ([site(WAITS, None)], None),
    ],
)
def test_one_line_that_waits_is_enough(sites: list[Site], said: bool | None) -> None:
    assert non_blocking(sites) is said
