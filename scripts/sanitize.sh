#!/usr/bin/env bash
# Readers of files and everything with plain logic under AddressSanitizer + UBSan, the thread pool under
# TSan. (libtorch is not instrumented, so what links it would report its allocations, not ours.)
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

sanitized asan core_test io_test arch_test data_test layout_test
sanitized tsan core_test
