#!/usr/bin/env bash
# One sitting on a GPU machine: collectors, event truth, then the demos (see run_demos.py).
# usage: benchmarks/gpu_session.sh OUT_DIR   (needs torch, pytest and the project's own requirements)
#   DEMOS="starved healthy"  only these, empty for none    DEMO_SECONDS=360  their limit    TRIAL=1  prove the advice
#   CASES=DIR                judge the diagnosis on a directory of cases   CASES_SECONDS=560  its limit
#   CASES_ARGS="--repeat 5 --only 01"  options of benchmarks/diagnosis.py for it
#   TESTS="tests/gpu -k ..."  what pytest runs, empty for none            TEST_SECONDS=300  its limit
set -u
out=$1
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$PWD" PYTHONUNBUFFERED=1
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
tests=${TESTS-tests/gpu}
if [ -n "$tests" ]; then
  eval "timeout ${TEST_SECONDS:-300} python3 -m pytest -v -m gpu $tests -s --tb=short" >"$out/pytest_gpu.txt" 2>&1
  grep -E "passed|failed|^FAILED|^ERROR|PASSED|^[|]|^[(]|hidden wait|followed:|step before|busy read|many reads|^E  " "$out/pytest_gpu.txt" | cut -c1-400
fi
if [ -n "${CASES:-}" ]; then
  eval "timeout ${CASES_SECONDS:-560} python3 benchmarks/diagnosis.py \"$CASES\" --out $out/diagnosis.md --keep $out/kept ${CASES_ARGS:-}" 2>"$out/diagnosis.log" | cut -c1-300
  tar -C "$out" -czf "$out/kept.tar.gz" kept && rm -rf "$out/kept"
fi
[ "${DEMOS-x}" = "" ] && exit
timeout "${DEMO_SECONDS:-320}" python3 benchmarks/run_demos.py "$out/demos" ${DEMOS:+--only $DEMOS} ${TRIAL:+--trial}
tar -C "$out/demos" --exclude=./runs -czf "$out/demos.tar.gz" . && rm -rf "$out/demos"
