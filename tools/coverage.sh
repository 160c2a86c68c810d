#!/usr/bin/env bash
# Measures which lines of Python and C++ the tests run: tools/coverage.sh [files or folders of
# tests]. Without arguments it runs all tests except the deep ones, in half an hour on two cores. The
# reports are build/coverage/{python,cpp}.txt. Needs `pip install coverage pytest-cov gcovr`, torch,
# pybind11, the packages of the extra `test`, and Python 3.12 or newer: with older releases, coverage
# sets a trace function, and the engine then runs calls through Python, so its C++ would not be measured.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(command -v python || command -v python3)
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' || {
  echo "needs Python 3.12 or newer" >&2
  exit 2
}
export COVERAGE_CORE=sysmon
build=$PWD/build/coverage
mkdir -p build
pybind11_DIR=$("$python" -m pybind11 --cmakedir) \
  cmake --preset coverage -DPython_EXECUTABLE="$python" >"$build.log"
cmake --build --preset coverage
find "$build" -name '*.gcda' -delete

# A package of links to the sources, with these extensions.
package=$build/package/fxpress
rm -rf "$build/package"
mkdir -p "$build/package"
cp -rs "$PWD/python/fxpress" "$build/package/"
ln -sf "$build"/_native*.so "$build"/_aten_*.so "$package/"
export PYTHONPATH=$build/package

ctest --preset coverage
status=0
# Each component runs in a process without xdist, because xdist may kill workers before they write their data.
# The deselected tests do not work under coverage: a signal may interrupt coverage while it holds its
# lock, and coverage allocates memory for each new code object.
rm -f "$build"/data.*
[ $# -gt 0 ] || set -- tests/*/
printf '%s\0' "$@" | xargs -0 -P "$(nproc)" -I{} bash -c '
  COVERAGE_FILE=$1/data.$(basename "$2") "$0" -m pytest -q -n 0 -m "not deep" --cov=fxpress --cov-report= \
    --deselect tests/all_components/test_concurrent_interrupts.py \
    --deselect tests/split/test_memory.py::test_no_block_leaks "$2"
  status=$?
  [ $status = 5 ] || exit $status # 5: no tests
' "$python" "$build" {} || status=$?
export COVERAGE_FILE=$build/data
"$python" -m coverage combine -q "$build"/data.*
"$python" -m coverage report --skip-covered --sort=cover >"$build/python.txt"
"$python" -m gcovr --root "$PWD" --filter csrc/ --gcov-ignore-parse-errors \
  --exclude-throw-branches --sort uncovered-percent "$build" >"$build/cpp.txt"
tail -n 1 "$build/python.txt"
grep ^TOTAL "$build/cpp.txt"
exit $status
