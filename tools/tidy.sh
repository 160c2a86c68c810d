#!/usr/bin/env bash
# Runs clang-tidy over csrc, without compiling it: tools/tidy.sh. Needs the packages of
# .ci/lint-requirements.txt, and pybind11 for the Python on the PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(command -v python || command -v python3)
pybind11_DIR=$("$python" -m pybind11 --cmakedir) \
  cmake --preset tidy -DPython_EXECUTABLE="$python" >/dev/null
# Files of csrc, and the unity files, which include all files of a component.
sed -n 's/^ *"file": "\(.*\)",\?$/\1/p' build/tidy/compile_commands.json |
  grep -E '/(csrc|Unity)/' |
  xargs -P "$(nproc)" -n 1 clang-tidy -p build/tidy --quiet
