"""Which parameters zero-bubble schedules of torch would give no gradient."""

from __future__ import annotations

import torch

from fxpress._torch.gradient_paths import loses_gradients


def test_paths() -> None:
    x, w, v = (torch.ones(2, requires_grad=True) for _ in range(3))
    met = x * w
    assert not loses_gradients([met + v], [x])  # the sum is on the path of x
    assert not loses_gradients([met, met * 2], [x])
    assert loses_gradients([met, v * 2], [x])
    assert loses_gradients([met * (w * v), w * 2], [x])  # one path of w meets, and one does not
    assert loses_gradients([w * 2], [torch.ones(2)])
    assert loses_gradients([w * 2], [])
    assert not loses_gradients([torch.ones(2), 3], [x])
