#!/usr/bin/env bash
# Everything a fresh machine needs, each step only if it is missing or out of date:
# system packages, .venv with the pinned Python packages, the build. A second call takes seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/packages.sh

say() { printf '\033[1msetup:\033[0m %s\n' "$*"; }

# 1. System packages: compiler, build tools and the libraries that we link.
packages=(g++ make ninja-build pkg-config libhwy-dev libcli11-dev nlohmann-json3-dev libfmt-dev
          libxxhash-dev libgloo-dev libgtest-dev libgmock-dev libbenchmark-dev)
python3 -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
  packages+=(python3 python3-venv)
install_packages setup "${packages[@]}"

# 2. Python packages, pinned in requirements.txt (about 6 GB, most of it torch).
stamp=.venv/requirements.stamp
wanted=$(cat requirements.txt pyproject.toml | sha256sum)
if [ ! -x .venv/bin/python ] || [ "$(cat $stamp 2>/dev/null)" != "$wanted" ]; then
  say "creating .venv and installing requirements.txt (some minutes the first time)"
  [ -x .venv/bin/python ] || python3 -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
  # Tests read and write Megatron's data files with megatron-core; its own needs are not ours.
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps megatron-core==0.16.1
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
  echo "$wanted" >$stamp
fi

# 3. The program and the tests.
export PATH="$PWD/.venv/bin:$PATH"
if [ ! -f build/build.ninja ]; then
  say "configuring build/"
  cmake --preset release >build.configure.log 2>&1 ||
    { cat build.configure.log >&2; exit 1; }
  rm -f build.configure.log
fi
say "building (a few minutes the first time)"
cmake --build build
say "ready: build/halfstep, .venv/bin/python"
