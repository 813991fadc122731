#!/usr/bin/env bash
# scripts/fuzz.sh [SECONDS] [TARGET…]: fuzzes every reader of files (tests/fuzz/targets), or the
# named ones, for SECONDS in all (60), under AddressSanitizer and UBSan. Builds, then gives each
# target its share of the time, in which the corpus is replayed first. Ends with the executions per
# target; any finding fails it and is kept under runs/fuzz/findings/TARGET. Inputs that reached new
# code stay in runs/fuzz/corpus/TARGET, from where the next call goes on.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/packages.sh

seconds=${1:-60}
[ $# -gt 0 ] && shift
case $seconds in '' | *[!0-9]*)
  echo "fuzz: got '$seconds', expected a number: scripts/fuzz.sh [SECONDS] [TARGET…]" >&2
  exit 2 ;;
esac

packages=(clang libclang-rt-14-dev)
install_packages fuzz "${packages[@]}"

targets=("$@")
if [ ${#targets[@]} = 0 ]; then
  for folder in tests/fuzz/corpus/*/; do targets+=("$(basename "$folder")"); done
fi
cmake --preset fuzz >build-fuzz.configure.log 2>&1 || { cat build-fuzz.configure.log >&2; exit 1; }
rm -f build-fuzz.configure.log
cmake --build build-fuzz --target "${targets[@]/#/fuzz_}"

# Targets that read folders write them here; a file in memory costs microseconds.
scratch=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)/halfstep_fuzz.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch HALFSTEP_PARROT=$PWD/build-fuzz/parrot
export ASAN_OPTIONS=quarantine_size_mb=32:detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
limits=(-rss_limit_mb=1024 -malloc_limit_mb=128 -timeout=20 -max_len=8192)

total=0 failed=()
share=$(((seconds + ${#targets[@]} - 1) / ${#targets[@]}))
[ "$share" -gt 0 ] || share=1
for target in "${targets[@]}"; do
  found=runs/fuzz/findings/$target grown=runs/fuzz/corpus/$target log=runs/fuzz/$target.log
  mkdir -p "$found" "$grown"
  options=("${limits[@]}" -artifact_prefix="$found/" -print_final_stats=1)
  [ -f "tests/fuzz/targets/$target.dict" ] && options+=(-dict="tests/fuzz/targets/$target.dict")
  status=ok
  build-fuzz/fuzz_"$target" "${options[@]}" -max_total_time="$share" \
    "$grown" "tests/fuzz/corpus/$target" >"$log" 2>&1 || status=FINDING
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -1)
  total=$((total + ${executions:-0}))
  printf '%-16s %12d executions  %s\n' "$target" "${executions:-0}" "$status"
  if [ "$status" != ok ]; then
    failed+=("$target")
    grep -aE 'ERROR|SUMMARY|runtime error|what\(\)|Test unit written' "$log" | head -8 >&2 || true
  fi
done
printf '%-16s %12d executions in %d s\n' total "$total" "$((share * ${#targets[@]}))"
if [ ${#failed[@]} -gt 0 ]; then
  echo "fuzz: findings in ${failed[*]}: see runs/fuzz/TARGET.log and runs/fuzz/findings/TARGET" >&2
  echo "  One alone: build-fuzz/fuzz_TARGET FILE. Fixed, it belongs into tests/fuzz/corpus/TARGET" >&2
  exit 1
fi
