#!/usr/bin/env bash
# Downloads what the extensions need of each release of torch: tools/fetch_torch.sh FOLDER [PIP OPTION...].
# Prints the folders, separated by colons, as FXPRESS_TORCH takes them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mkdir -p "$1" && cd "$1" && pwd)
shift
found=()
while read -r version; do
  torch=$folder/$version/torch
  if [ ! -d "$torch" ]; then
    # Any Python's wheel serves; one for 3.12 exists for every release.
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
