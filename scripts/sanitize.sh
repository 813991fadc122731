#!/usr/bin/env bash
# The tests above the torch line under AddressSanitizer + UBSan, and the threaded ones under TSan.
# (libtorch is not instrumented, so what links it would report its allocations, not ours.)
set -euo pipefail
cd "$(dirname "$0")/.."
torch_free="core_test kernels_test io_test arch_test data_test layout_test checkpoint_test fuzz_test"
cmake --preset asan >/dev/null
cmake --build build-asan --target $torch_free
ctest --test-dir build-asan --output-on-failure --no-tests=error -R "^(${torch_free// /|})\$"
cmake --preset tsan >/dev/null
cmake --build build-tsan --target core_test kernels_test
ctest --test-dir build-tsan --output-on-failure --no-tests=error -R '^(core_test|kernels_test)$'
