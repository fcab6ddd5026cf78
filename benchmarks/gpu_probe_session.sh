#!/usr/bin/env bash
# One sitting on a machine with two NVIDIA GPUs: what watching costs, event truth, harmlessness.
# usage: benchmarks/gpu_probe_session.sh OUT_DIR [SECONDS]   (default 560; both lanes end then)
#   Lane 0 has GPU 0 and the first half of the CPUs to itself: overhead at 1 and 2 ms, event truth.
#   Lane 1 has the other half: harmlessness, captures, bursts, memory, lines, collectors.
#   LANES=0 runs the first alone, for a machine with one GPU; LANES=1 the second, on GPU 0.
#   OVERHEAD_S=100  seconds of measuring a step size; calibration and warm-up take 60 more
set -u
out=$1
limit=${2:-560}
lanes=${LANES:-0 1}
each=${OVERHEAD_S:-100}
commit=${COMMIT:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
export PYTHONUNBUFFERED=1 PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$PWD"
half=$(($(nproc) / 2))
last=$(($(nproc) - 1))
[ "$lanes" = "0 1" ] || half=$((last + 1))
lane0() {
  export CUDA_VISIBLE_DEVICES=0
  for ms in 1 2; do
    timeout $((each + 110)) python3 benchmarks/overhead.py --device cuda --by-steps --steps-ms $ms --seconds "$each" \
      --gpu 0 --cpus 0-$((half - 1)) --commit "$commit" --out "$out/over" >>"$out/over.txt" 2>&1
  done
  timeout 130 taskset -c 0-$((half - 1)) python3 -m pytest -p no:cacheprovider -m gpu -s -v --tb=short \
    tests/gpu/test_truth.py >"$out/truth.txt" 2>&1
}
lane1() {
  local cpus="$half-$last" gpu=1
  [ "$lanes" = "0 1" ] || { cpus="0-$last"; gpu=0; }
  export CUDA_VISIBLE_DEVICES=$gpu
  timeout 240 taskset -c "$cpus" python3 benchmarks/harmlessness.py --device cuda --jobs 8 --steps 8 \
    --keep "$out/keep" --out "$out/harmlessness.md" >"$out/harmlessness.txt" 2>&1
  for part in probe_real burst_real captures memory_real lines_real nvml_real whatifs_gpu settings_gpu; do
    timeout 150 taskset -c "$cpus" python3 -m pytest -p no:cacheprovider -m gpu -s -v --tb=short \
      "tests/gpu/test_$part.py" >"$out/$part.txt" 2>&1
  done
}
mkdir -p "$out/over" "$out/keep"
pids=()
for lane in $lanes; do
  "lane$lane" &
  pids+=($!)
done
(sleep "$limit"; kill "${pids[@]}"; pkill -f 'benchmarks/(overhead|harmlessness).py'; pkill -f 'pytest.*tests/gpu') >/dev/null 2>&1 &
watch=$!
wait "${pids[@]}"
kill $watch 2>/dev/null
tar -C "$out" -czf "$out/over.tar.gz" over
tar -C "$out" -czf "$out/keep.tar.gz" keep
rm -rf "${out:?}/over" "${out:?}/keep"
tail -30 "$out"/over.txt 2>/dev/null | cut -c1-250
for file in "$out"/*.txt; do
  echo "=== $(basename "$file" .txt)"
  grep -E "passed|failed|^FAILED|^ERROR|^[|]|^E  |different" "$file" | cut -c1-230 | tail -25
done
