"""Changes of texts and JSON values that keep them well formed, most of the time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Mutate = Callable[[bytes, int, int], bytes]  # the input, its largest size, the seed


def of_tokens(tokens: Sequence[str], seeds: Sequence[str]) -> Mutate:
    """A mutator of texts: pieces are put in, left out, doubled, or taken from a seed."""

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        text = data.decode("utf-8", "replace")
        for _ in range(rng.randint(1, 4)):
            text = _changed(text, rng, tokens, seeds)
        return text.encode("utf-8", "replace")[:max_size]

    return mutate


def _changed(text: str, rng: random.Random, tokens: Sequence[str], seeds: Sequence[str]) -> str:
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
            return rng.choice(seeds)
        case 4:
            return text[:start] + rng.choice(seeds) + text[end:]
        case 5:
            return f"{rng.choice(tokens)}({text}, {rng.choice(tokens)})"
        case _:
            return text[:start] + rng.choice(tokens) + text[end:]
