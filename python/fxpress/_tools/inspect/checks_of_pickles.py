"""Look at the pickles of `torch.save` without making anything of them."""

from __future__ import annotations

from fxpress import _native
from fxpress._base.errors import Error
from fxpress._files.format.deflated import inflate
from fxpress._files.format.limit_values import DEFAULT
from fxpress._tools.inspect.findings import Found

_RECORD = "data.pkl"
_REFUSED = "the pickle is refused: "


def check_pickle(saved: bytes, left: int) -> Found:
    """Yield why a load refuses a file of `torch.save` whatever it is allowed to unpickle.

    The opcodes of the pickle are read: they tell how large, and how deep, its value is.

    Args:
        saved: the file.
        left: the bytes that may be taken.
    """
    try:
        reader = _native.ArchiveReader(saved, 0)
        _, _, size, _, is_deflated = reader.records()[_RECORD]
        text = reader.stored_bytes(_RECORD)
        if is_deflated and 2 * size > left:  # zlib holds the parts and the joined result at once
            yield f"it needs too much memory for a file of this size: {size} bytes", False
            return
        text = inflate(text, size) if is_deflated else text
    except (_native.ArchiveError, KeyError, ValueError) as e:
        yield f"it is no file of torch.save: {e}", True
        return
    try:
        elements, depth, contains_itself = _native.scan_pickle(
            text, _native.Budget(left, DEFAULT.depth)
        )
    except (ValueError, Error) as e:  # Error: another part of this process has imported torch
        said = str(e)
        yield said.removeprefix(_REFUSED), said.startswith(_REFUSED)
        return
    if contains_itself:
        yield "a list or dict in it contains itself", True
    elif depth > DEFAULT.depth:
        yield f"it has more than {DEFAULT.depth} values within each other", False
    elif elements > DEFAULT.elements:
        yield f"it has more than {DEFAULT.elements} items", False
