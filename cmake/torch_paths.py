"""Print torch's version, its folder and its C++ ABI flag as a CMake list."""

import pathlib

import torch

print(
    torch.__version__,
    pathlib.Path(torch.__file__).parent.as_posix(),
    int(torch.compiled_with_cxx11_abi()),
    sep=";",
    end="",
)
