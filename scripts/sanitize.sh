#!/usr/bin/env bash
# Everything above the torch line under AddressSanitizer + UBSan; the thread pool and the ranks that are
# threads under TSan. (libtorch is not instrumented, so what links it would report its allocations, not
# ours.)
set -euo pipefail
cd "$(dirname "$0")/.."

# sanitized PRESET TEST…: builds and runs these tests.
sanitized() {
  local preset=$1; shift
  cmake --preset "$preset" >/dev/null
  cmake --build "build-$preset" --target "$@"
  local names="$*"
  ctest --test-dir "build-$preset" --output-on-failure --no-tests=error -R "^(${names// /|})\$"
}

corpus=()
for folder in tests/fuzz/corpus/*/; do corpus+=("corpus_$(basename "$folder")"); done

sanitized asan core_test kernels_test io_test comm_test arch_test data_test layout_test checkpoint_test \
  fuzz_test "${corpus[@]}"
sanitized tsan core_test comm_test
