"""train() and eval() of unflattened modules: what follows the mode, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxpress import UnsupportedError
from tests.support.unflatten_cases import ours_of
from tests.support.unflatten_compare import assert_same_outputs


class Explicit(nn.Module):
    """Dropout that does not depend on the mode, next to a user's own flag."""

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.flag = training

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x), 0.5, training=self.flag)


class Frozen(nn.Module):
    """Batch norm in eval mode within a model in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4).eval()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(x))


class Recurrent(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, num_layers=2, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        result, _ = self.lstm(x[None])
        return result[0]  # type: ignore[no-any-return]


SAME_IN_BOTH: dict[str, Callable[[], nn.Module]] = {
    "batch statistics": lambda: nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)),
    "explicit on": lambda: Explicit(True),
    "explicit off": lambda: Explicit(False),
    "drops nothing": lambda: nn.Sequential(nn.Dropout(0.0)),
    "lstm": lambda: Recurrent(0.0),
}
DIFFERENT: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
    "dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
    "alpha dropout": lambda: nn.Sequential(nn.AlphaDropout(0.5)),
    "lstm": lambda: Recurrent(0.5),
}


def as_eager(ours: nn.Module, eager: nn.Module, x: Tensor) -> None:
    """The same values with the same random numbers."""
    results = []
    for module in (ours, eager):
        torch.manual_seed(3)
        results.append(module(x))
    assert_same_outputs(*results)


@pytest.mark.parametrize("exported_in", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("build", SAME_IN_BOTH.values(), ids=SAME_IN_BOTH.keys())
def test_modes_that_change_nothing(build: Callable[[], nn.Module], exported_in: bool) -> None:
    """Both modes are set, and both give what the eager model gives in them."""
    model, x = build().train(exported_in), torch.randn(6, 4)
    ours = ours_of(model, x)
    for mode in (exported_in, not exported_in, exported_in):
        assert ours.train(mode) is ours
        assert all(m.training is mode for m in ours.modules())
        as_eager(ours, model.train(mode), x)


@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
@pytest.mark.parametrize("exported_in", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("build", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_modes_that_the_graph_contradicts(
    build: Callable[[], nn.Module], exported_in: bool, strict: bool
) -> None:
    model, x = build().train(exported_in), torch.randn(6, 4)
    ours = ours_of(model, x, strict=strict).train(exported_in)
    name = "eval" if exported_in else "train"
    with pytest.raises(UnsupportedError, match=rf"{name}\(\) is not supported: .* in (1|0|lstm) "):
        getattr(ours, name)()
    assert all(m.training is exported_in for m in ours.modules()), "set by halves"
    as_eager(ours, model, x)


def test_rrelu_in_training() -> None:
    """In eval mode it is exported as another operator, which has no flag."""
    ours = ours_of(nn.Sequential(nn.RReLU()), torch.randn(6, 4))
    with pytest.raises(UnsupportedError):
        ours.eval()


def test_models_with_modules_in_both_modes() -> None:
    """The mode of the entire model may be either; the error names the mode of the graph."""
    model, x = Frozen(), torch.randn(6, 4)
    ours = ours_of(model, x)
    for mode, name in ((True, "train"), (False, "eval")):
        with pytest.warns(UserWarning, match=rf"{name}\(\) leaves operators .* \(1 of 2 op"):
            ours.train(mode)
        assert all(m.training is mode for m in ours.modules())
    as_eager(ours, model, x)
    # The modules alone have one mode each.
    for path, mode in (("norm", False), ("drop", True)):
        ours.get_submodule(path).train(mode)
        with pytest.raises(UnsupportedError):
            ours.get_submodule(path).train(not mode)
        assert ours.get_submodule(path).training is mode


@pytest.mark.parametrize("name", ["train", "eval"])
def test_a_parent_is_not_left_half_set(name: str) -> None:
    """torch.nn.Module.train sets one module after the other: an exception would stop it midway."""
    exported_in = name == "eval"
    model, x = DIFFERENT["dropout"]().train(exported_in), torch.randn(6, 4)
    parent = nn.Sequential(nn.Linear(4, 4), ours_of(model, x), nn.Dropout(0.5))
    parent.train(exported_in)
    with pytest.warns(UserWarning, match="in the mode of the export"):
        getattr(parent, name)()
    assert all(m.training is not exported_in for m in parent.modules())
    as_eager(parent[1], model, x)


def test_a_childs_own_train_is_called() -> None:
    class Own(nn.Linear):
        asked: Any = ()

        def train(self, mode: bool = True) -> Own:
            self.asked = (*self.asked, mode)
            return self

    ours = ours_of(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.randn(6, 4))
    own = Own(4, 4)
    ours.set_submodule("0", own)
    with pytest.raises(UnsupportedError):
        ours.eval()
    assert own.asked == ()
    ours.train()
    assert own.asked == (True,)


def test_modes_of_repeated_preserved_calls() -> None:
    """All calls of a dispatcher are checked."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

        def forward(self, x: Tensor) -> Tensor:
            return self.block(self.block(x) + 1)  # type: ignore[no-any-return]

    model, x = Twice(), torch.randn(6, 4)
    ours = ours_of(model, x, preserve_module_call_signature=("block",))
    for module in (ours, ours.block):
        with pytest.raises(UnsupportedError):
            module.eval()
        module.train()
    as_eager(ours, model, x)


def test_modes_are_bools() -> None:
    ours = ours_of(nn.Linear(4, 4), torch.randn(6, 4))
    with pytest.raises(ValueError, match="boolean"):
        ours.train(1)
