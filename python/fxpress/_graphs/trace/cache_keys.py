"""Find the keys of calls in torch's cache of fake tensors without computing them again."""

from __future__ import annotations

from typing import Any

from fxpress._torch.fakes import call_digest
from fxpress._torch.tracing import FakeTensor, state_of_cache_keys


class CacheKeys:
    """Keeps the keys that torch computed in one trace; torch's cache has the calls' results."""

    def __init__(self) -> None:
        self._keys: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def find(
        self, original: Any, mode: Any, state: Any, function: Any, args: Any, kwargs: Any
    ) -> Any:
        """Return the key of a call of an operator in `mode`, as torch's `_cache_key` does."""
        digest = None if call_digest is None else call_digest(mode, FakeTensor, args, kwargs)
        if digest is None or mode.in_kernel_invocation:
            return original(mode, state, function, args, kwargs)
        place = (id(mode), id(function), digest, state_of_cache_keys())
        known = self._keys.get(place)
        if known is None:
            made = original(mode, state, function, args, kwargs)
            known = self._keys[place] = (made, mode, function)  # so that ids are not reused
        return known[0]
