"""Changes of texts and JSON values that keep them well formed, most of the time."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Sequence

Mutate = Callable[[bytes, int, int], bytes]  # the input, its largest size, the seed


class Pool:
    """Texts with something new in them, which others are made of.

    The fuzzer keeps what reaches new code, and sees none of what native code does.
    """

    def __init__(self, seeds: Sequence[str]) -> None:
        self.texts = list(seeds)
        self._seen: set[Hashable] = set()

    def add(self, text: str, features: Iterable[Hashable]) -> None:
        """Keeps a text of moderate length when a feature of it is new."""
        new = set(features) - self._seen
        self._seen |= new
        if new and len(text) <= 500:
            self.texts.append(text)


def of_tokens(tokens: Sequence[str], pool: Pool) -> Mutate:
    """A mutator of texts: pieces are put in, left out, doubled, or taken from the pool."""

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        given = data.decode("utf-8", "replace")
        text = rng.choice(pool.texts) if rng.random() < 0.7 else given
        for _ in range(rng.randint(1, 5)):
            text = _changed(text, rng, tokens, pool.texts)
        return text.encode("utf-8", "replace")[:max_size]

    return mutate


def _changed(text: str, rng: random.Random, tokens: Sequence[str], others: Sequence[str]) -> str:
    start = rng.randrange(len(text) + 1)
    end = min(len(text), start + rng.choice((0, 0, 1, 2, 5, 20)))
    match rng.randrange(8):
        case 0:
            return text[:start] + text[end:]
        case 1:
            return text[:start] + chr(rng.choice((0, 10, 34, 39, 92, 40, 41, 0xD7, 0x2028)))
        case 2:
            return text[:start] + text[start:end] * rng.choice((2, 3, 30)) + text[end:]
        case 3:
            other = rng.choice(others)
            cut = rng.randrange(len(other) + 1)
            return text[:start] + other[cut : cut + rng.choice((5, 20, 60))] + text[end:]
        case 4:
            return text[:start] + rng.choice(others) + text[end:]
        case 5:
            return f"{rng.choice(tokens)}({text}, {rng.choice(tokens)})"
        case _:
            return text[:start] + rng.choice(tokens) + text[end:]
