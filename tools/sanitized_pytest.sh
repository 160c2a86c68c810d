#!/usr/bin/env bash
# Runs Python tests with both extensions under AddressSanitizer and UBSan, in a Python that is not
# instrumented: tools/sanitized_pytest.sh [arguments of pytest]. Without arguments it runs a subset
# of less than two minutes: misbehaving callbacks, and inconsistent graphs and files.
set -euo pipefail
cd "$(dirname "$0")/.."

short=(
  tests/archive/test_damage.py
  tests/serde/test_safety.py
  tests/all_components/test_edited_graphs.py
  tests/serde/test_gate.py
  tests/all_components/test_hostile_items.py
  tests/all_components/test_hostile_keys.py
  tests/serde/test_limits.py
  tests/all_components/test_lists_as_args.py
  tests/serde/test_check.py
  tests/split/test_bad_input.py
  tests/unflatten/test_bad_input.py
  tests/engine/test_callbacks.py
  tests/engine/test_noticed_changes.py
  tests/decompose/test_templates.py
  tests/decompose/test_traced_calls.py
  tests/export/test_native.py
  tests/fx/test_provenance.py
  tests/all_components/test_concurrent_first_calls.py
)

python=$(command -v python || command -v python3)
build=$PWD/build/asan-python
mkdir -p build
pybind11_DIR=$("$python" -m pybind11 --cmakedir) \
  cmake --preset asan-python -DPython_EXECUTABLE="$python" >"$build.log"
cmake --build --preset asan-python

# A package of links to the sources, with these extensions.
package=$build/package/fxpress
rm -rf "$build/package"
mkdir -p "$build/package"
cp -rs "$PWD/python/fxpress" "$build/package/"
ln -sf "$build"/_native*.so "$build"/_aten_*.so "$package/"

library() { g++ -print-file-name="$1"; }
export PYTHONPATH=$build/package PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1
# Leak detection is off, because Python does not free all objects at exit. A too large allocation returns
# null, as with malloc.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:${ASAN_OPTIONS:-}
export UBSAN_OPTIONS=print_stacktrace=1:${UBSAN_OPTIONS:-}
export LD_PRELOAD="$(library libasan.so):$(library libubsan.so):$(library libstdc++.so)"
loaded=$("$python" -c 'import fxpress; print(fxpress.__file__)')
if [ "$loaded" != "$package/__init__.py" ]; then
  echo "expected to import $package/__init__.py, imported $loaded: uninstall the editable install" >&2
  exit 1
fi
[ $# -gt 0 ] || set -- "${short[@]}"
exec "$python" -m pytest -n 2 -p no:cacheprovider -o timeout=0 -m "not deep" "$@"
