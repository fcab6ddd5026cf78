"""Workers and children forked from a sampled trainer, bare and watched: python tests/gpu/forked.py"""

import sys
import tempfile
import textwrap
from pathlib import Path

from tests.gpu.support import start
from tests.gpu.test_probe_real import EXTRA, LOOP, SAME

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "script.py"
        script.write_text(LOOP + textwrap.dedent(SAME["workers forked from a sampled trainer"]))
        plain = start(script, env=EXTRA)
        ours = start(script, probe_in=Path(directory) / "probe", env=EXTRA)
        found = [running.end(40) for running in (plain, ours)]
    for code, out, err in found:
        print(code, out.strip(), err[-300:])
    sys.exit(found[0][:2] != found[1][:2] or found[0][0] != 0)
