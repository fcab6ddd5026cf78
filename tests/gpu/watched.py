"""Run a script under the deployed probe, or bare: python tests/gpu/watched.py yes|no SCRIPT ARGS..."""

import sys
import tempfile
from pathlib import Path

from tests.gpu.support import bare_environment, deploy_quietly, run

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        probe = deploy_quietly(Path(directory)) if sys.argv[1] == "yes" else None
        env = probe.env() if probe else bare_environment()
        done = run(Path(sys.argv[2]).resolve(), *sys.argv[3:], env=env)
        sys.stdout.write(done.stdout.decode())
        sys.stderr.write(done.stderr.decode()[-3000:])
        sys.exit(done.returncode)
