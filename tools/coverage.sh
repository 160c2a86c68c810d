#!/usr/bin/env bash
# Shows which lines of Python and C++ the tests run: tools/coverage.sh [files or folders of
# tests]. Without arguments it runs all but the deep tests, which takes half an hour on two cores. The
# reports are build/coverage/{python,cpp}.txt. Needs `pip install coverage pytest-cov gcovr`, the
# packages that tools/sanitized_pytest.sh needs, and Python 3.12 or newer: in older releases, coverage
# sets a trace function, and then the engine leaves calls to Python.
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

# The package as it stands here, with these extensions.
package=$build/package/fxpress
rm -rf "$build/package"
mkdir -p "$build/package"
cp -rs "$PWD/python/fxpress" "$build/package/"
ln -sf "$build"/_native*.so "$build"/_aten_*.so "$package/"
export PYTHONPATH=$build/package

ctest --preset coverage
status=0
# A process for each component, without xdist, whose workers may be killed before they write their data.
# Signals would stop coverage while it holds its lock, and it uses memory for each new code object.
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
