#!/usr/bin/env bash
# Downloads the parts of each release in torch_versions.txt that a build of the extensions needs:
# tools/fetch_torch.sh FOLDER [PIP OPTION...]. Prints the folders, separated by colons, for FXPRESS_TORCH.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mkdir -p "$1" && cd "$1" && pwd)
shift
found=()
while read -r version; do
  torch=$folder/$version/torch
  if [ ! -d "$torch" ]; then
    # The wheel of any Python is suitable; every release has one for 3.12.
    pip download -q --no-deps --only-binary :all: --python-version 3.12 -d "$folder/$version" \
      "torch==$version" "$@" >&2
    python3 -m zipfile -e "$folder/$version"/torch-*.whl "$folder/$version/whole"
    mkdir -p "$folder/$version/part/lib" "$folder/$version/part/share"
    (cd "$folder/$version/whole/torch" && mv version.py include "$folder/$version/part" &&
      mv share/cmake "$folder/$version/part/share" &&
      mv lib/libtorch_python.so lib/libtorch_cpu.so lib/libc10.so "$folder/$version/part/lib")
    mv "$folder/$version/part" "$torch"
    rm -r "$folder/$version/whole" "$folder/$version"/torch-*.whl
  fi
  found+=("$torch")
done <"$here/torch_versions.txt"
(
  IFS=:
  echo "${found[*]}"
)
