#!/usr/bin/env bash
# Several sittings at once on a machine with several NVIDIA GPUs, each with a card and a share of the CPUs.
# usage: benchmarks/gpu_lanes.sh OUT_DIR SECONDS LANE...   (needs torch, pytest, the project's requirements)
#   overhead   what watching costs a step of 1 and 2 ms (EACH_S=150 seconds each), then event truth
#   fooling    demos/fooling, each judged (tests/gpu/test_cases_gpu.py)
#   trials     TRIALS=LIST.toml  searches and settings, predicted and achieved (benchmarks/trial_cases.py)
#   pages      the tests of screens, attach, doctor, settings, what-ifs and collectors; the screen's wire
#              with NVITOP=PATH and MEMRAY=PATH beside it
#   soak       a watched training for as long as there is time
#   gains:1/4  CASES=DIR  gains beside ceilings: every fourth case from the first on (PAIRS=1)
# Lanes that need a quiet machine (overhead) are better run alone. LANE_CPUS=8 CPUs a lane.
set -u
out=$1 limit=$2
shift 2
cpus=${LANE_CPUS:-$(($(nproc) / $#))}
export PYTHONUNBUFFERED=1 PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$PWD"
commit=${COMMIT:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
tests() { python3 -m pytest -p no:cacheprovider -m gpu -v --tb=short "$@"; }

overhead() {
  for ms in 1 2; do
    python3 benchmarks/overhead.py --device cuda --by-steps --steps-ms $ms --seconds "${EACH_S:-150}" \
      --commit "$commit" --out "$out/over"
  done
  TRUTH_SECONDS=6 tests tests/gpu/test_truth.py -s
}
fooling() { CASES="" tests tests/gpu/test_cases_gpu.py -k cause_is_named; }
trials() { python3 benchmarks/trial_cases.py "$TRIALS" --out "$out/trials.md" --json "$out/trials"; }
pages() {
  for part in attach_gpu doctor_real steps_page_gpu lines_page_gpu devices_page_gpu nvml_real replay_gpu \
    whatifs_gpu trial_gpu probe_real burst_real memory_real lines_real; do
    tests "tests/gpu/test_$part.py"
  done
  python3 benchmarks/tui_wire.py --table ${NVITOP:+--nvitop "$NVITOP"} ${MEMRAY:+--memray "$MEMRAY"} \
    --write "$out/tui_wire.md"
}
soak() { python3 benchmarks/soak.py --device cuda --minutes $((limit / 60 - 1)) --write "$out/soak.md"; }
gains() {
  local first=${1%/*} step=${1#*/} names
  names=$(cd "$CASES" && python3 -c "
import json
names = sorted(json.load(open('expected.json')))
print(*names[$first - 1 :: $step])")
  # shellcheck disable=SC2086
  python3 benchmarks/diagnosis.py "$CASES" --pairs "${PAIRS:-1}" --only $names \
    --out "$out/gains-$first.md" --keep "$out/kept-$first"
}

mkdir -p "$out/over"
card=0
lanes=()
for lane in "$@"; do
  log="$out/$(echo "$lane" | tr ':/' '--').txt"
  (
    export CUDA_VISIBLE_DEVICES=$card
    first=$((card * cpus))
    declare -f tests "${lane%%:*}" >"$log.sh"
    export out limit commit
    taskset -c "$first-$((first + cpus - 1))" timeout -k 10 "$limit" \
      bash -c "set -u; . '$log.sh'; ${lane%%:*} ${lane#*:}" >"$log" 2>&1
    echo "$lane: exit code $?"
    rm -f "$log.sh"
  ) &
  lanes+=($!)
  card=$((card + 1))
done
wait "${lanes[@]}"
for each in over kept-1 kept-2 kept-3 kept-4 trials; do
  [ -d "$out/$each" ] && tar -C "$out" -czf "$out/$each.tar.gz" "$each" && rm -rf "${out:?}/$each"
done
for log in "$out"/*.txt; do
  echo "=== $(basename "$log" .txt)"
  grep -E "passed|failed|^FAILED|^ERROR|^[|]|^E  " "$log" | cut -c1-230 | tail -30
done
