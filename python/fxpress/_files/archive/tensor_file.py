"""Read safetensors files without mapping them.

The library of the format maps files; a mapped file that gets shorter ends the process.
"""

from __future__ import annotations

import torch

from fxpress._files.errors import ArchiveError
from fxpress._files.format.dtypes import BY_CODE
from fxpress._files.format.tensor_header import NUMBER, Place, header_length, read_header
from fxpress._files.remote.ranges import File
from fxpress._files.serde.limits import Budget

# An older torch may not have all of the dtypes of the format.
DTYPES = {
    code: getattr(torch, dtype.name)
    for code, dtype in BY_CODE.items()
    if hasattr(torch, dtype.name)
}


class TensorFile:
    """The tensors in a safetensors file. Each read of a tensor gives it memory of its own.

    Args:
        file: the file, whose owner closes it.
        budget: the budget of the load, which grows by the size of the file.

    Attributes:
        file: the file.
        metadata: texts that it carries.
        places: name -> where the tensor is.

    Raises:
        LimitError: the header is too large, or nested too deeply.
        OSError: the file cannot be read.
        ArchiveError: the file is damaged, or has a dtype that this torch does not have.
    """

    def __init__(self, file: File, budget: Budget) -> None:
        self.file = file
        whole = file.size
        begin = file.read(0, min(8, whole))
        try:
            length = header_length(begin, whole)
        except ValueError as e:
            raise self._damaged(str(e)) from None
        budget.grow(whole)
        text = file.read(8, 8 + length)
        budget.check_json(text, str(file.path))
        try:
            self.metadata, self.places = read_header(text, whole)
        except ValueError as e:
            raise self._damaged(str(e)) from None
        for name, place in self.places.items():
            if not hasattr(torch, place.dtype):
                raise self._damaged(f"this torch has no {place.dtype}, the type of {name!r}")

    def _damaged(self, why: str) -> ArchiveError:
        return ArchiveError(f"{self.file.path} is damaged: {why}")

    @property
    def number(self) -> str | None:
        """The number of the save that wrote the file; None where it has none."""
        number = self.metadata.get(NUMBER)
        return number if isinstance(number, str) else None

    def check_number(self, number: str, kind: str) -> None:
        """Raise ArchiveError unless the file has this number; `kind`: of what, for the error."""
        if self.number != number:
            raise ArchiveError(
                f"{self.file.path} belongs to another {kind}, or to another save of it"
            )

    def place(self, name: str) -> Place:
        """Return where a tensor is; ArchiveError when there is none of that name."""
        if name not in self.places:
            raise ArchiveError(f"{self.file.path} has no tensor {name!r}")
        return self.places[name]

    def read(self, name: str) -> torch.Tensor:
        """Return the tensor of that name; KeyError when there is none."""
        place = self.places[name]
        dtype = getattr(torch, place.dtype)
        if not place.size:  # frombuffer() takes no empty buffers
            return torch.empty(place.shape, dtype=dtype)
        data = bytearray(place.size)
        with memoryview(data) as view:
            self.file.read_into(place.begin, view)
        return torch.frombuffer(data, dtype=dtype).reshape(place.shape)
