#!/usr/bin/env bash
# What a GPU machine is asked for in one sitting: collectors, event truth, then the demos (see run_demos.py).
# usage: benchmarks/gpu_session.sh OUT_DIR   (needs torch, pytest and the project's own requirements)
set -u
out=$1
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$PWD" PYTHONUNBUFFERED=1
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
timeout 200 python3 -m pytest -q -m gpu tests/gpu -s -p no:cacheprovider 2>&1 | tail -120 >"$out/pytest_gpu.txt"
grep -E "passed|failed|^FAILED|^ERROR|data wait|hidden wait|busy read|many reads|^E  " "$out/pytest_gpu.txt"
timeout "${DEMO_SECONDS:-320}" python3 benchmarks/run_demos.py "$out/demos" ${DEMOS:+--only $DEMOS} ${TRIAL:+--trial}
tar -C "$out/demos" --exclude=./runs -czf "$out/demos.tar.gz" . && rm -rf "$out/demos"
