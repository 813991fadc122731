# The two commands of the README are `make demo` and `make test`; the rest is for developers.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

CTEST = ctest --test-dir build --output-on-failure --no-tests=error
PYTEST = HALFSTEP_BINARY=$(CURDIR)/build/halfstep python -m pytest -q

.PHONY: help setup demo test test-slow test-nightly sanitize fuzz bench format clean

help:
	@sed -n 's/^##//p' $(MAKEFILE_LIST)

## setup         system packages, .venv, build; incremental
setup:
	@scripts/setup.sh

## demo          train a small Qwen3 on real text twice, FP32 state and O2, and compare (DATA="FILE…" for other text)
demo: setup
	@python scripts/demo.py $(DATA)

## test          the test suite (C++ and Python)
test: setup
	$(CTEST) -LE 'slow|nightly'
	$(PYTEST) python/tests

## test-slow     what takes minutes: kill tests, long numerics, larger grids
test-slow: setup
	$(CTEST) -L slow

## test-nightly  exhaustive forms: all 2^32 patterns, full grids
test-nightly: setup
	$(CTEST) -L nightly

## sanitize      everything without torch under AddressSanitizer and UBSan; threads under TSan
sanitize: setup
	@scripts/sanitize.sh

## fuzz          every reader of files, fuzzed under the sanitizers (FUZZ_SECONDS=1800)
FUZZ_SECONDS = 1800
fuzz: setup
	@scripts/fuzz.sh $(FUZZ_SECONDS)

## bench         the optimizer step against the machine's stream and torch; training speed; several ranks; checkpoints
bench: setup
	build/halfstep bench --check
	python benchmarks/train_speed.py --check
	python benchmarks/data_parallel.py overlap --check
	python benchmarks/data_parallel.py gradient --check
	python benchmarks/checkpoint.py --check

## format        clang-format over everything that git tracks
format:
	git ls-files '*.cc' '*.h' | xargs clang-format -i

clean:
	rm -rf build build-asan build-tsan build-dev build-fuzz runs
