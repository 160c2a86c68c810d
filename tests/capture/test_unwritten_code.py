"""Captures for which Dynamo generates no code: other compilations and logs do not notice."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.output_graph import OutputGraph

from fxpress import functional_export
from fxpress._torch.capture import unwritten_code

CAPTURES = pytest.mark.parametrize(
    "capture",
    [
        functional_export.dynamo_graph_capture_for_export,
        functional_export._dynamo_graph_capture_for_export,
    ],
    ids=["bytecode", "flat"],
)
METHOD = "compile_and_call_fx_graph"
ORIGINAL = vars(OutputGraph)[METHOD]


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,))


def is_as_before() -> bool:
    return vars(OutputGraph)[METHOD] is ORIGINAL


def compiled_code() -> list[str]:
    """The code of the graphs that a backend of torch.compile gets."""
    codes: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        codes.append(module.code)
        return module.forward

    torch._dynamo.reset()
    x = torch.ones(2)
    assert torch.equal(torch.compile(lambda x: x.relu(), backend=backend)(x), x)
    return codes


@CAPTURES
def test_modules_have_their_code(capture: Any) -> None:
    model, x = Branches(), torch.randn(2, 3)
    made = capture(model)(x)
    assert "linear" in made.code
    assert "python_code" not in vars(made.graph)
    torch.testing.assert_close(made(x), model(x))
    (branch, _) = (
        child for name, child in made.named_modules() if name.startswith("cond_true") or not name
    )
    assert branch.graph.python_code("self").src == branch.code
    assert is_as_before()


@CAPTURES
def test_logs_show_code(capture: Any, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("torch._dynamo.output_graph.__graph_code")
    level = logger.level
    torch._logging.set_logs(graph_code=True)
    logger.addHandler(caplog.handler)
    try:
        capture(Branches())(torch.randn(2, 3))
    finally:
        torch._logging.set_logs()
        logger.removeHandler(caplog.handler)
        logger.setLevel(level)  # torch leaves it
    assert any("linear" in record.getMessage() for record in caplog.records)


def test_blocks_end() -> None:
    with unwritten_code():
        assert not is_as_before()
        with pytest.raises(ZeroDivisionError), unwritten_code():
            raise ZeroDivisionError
        assert not is_as_before()
    assert is_as_before()
    (code,) = compiled_code()
    assert "relu" in code


def test_a_method_that_somebody_else_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def other(self: OutputGraph, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        return ORIGINAL(self, *args, **kwargs)

    monkeypatch.setattr(OutputGraph, METHOD, other)
    made = functional_export.dynamo_graph_capture_for_export(Branches())(torch.randn(2, 3))
    assert "linear" in made.code
    assert calls
    assert vars(OutputGraph)[METHOD] is other
    with unwritten_code():
        setattr(OutputGraph, METHOD, ORIGINAL)
    assert is_as_before()


def test_a_method_that_somebody_else_puts_back_later() -> None:
    with unwritten_code():
        ours = vars(OutputGraph)[METHOD]
        setattr(OutputGraph, METHOD, lambda *args, **kwargs: ours(*args, **kwargs))
    setattr(OutputGraph, METHOD, ours)
    made = functional_export.dynamo_graph_capture_for_export(Branches())(torch.randn(2, 3))
    assert "linear" in made.code
    assert is_as_before()


def test_other_threads_get_code() -> None:
    with ThreadPoolExecutor(1) as pool, unwritten_code():
        (code,) = pool.submit(compiled_code).result()
    assert "relu" in code


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_forked_children() -> None:
    """A child has only the blocks of the thread that forked."""

    def answer(expected: bool) -> int:
        child = os.fork()
        if not child:
            os._exit(0 if is_as_before() is expected else 1)
        return os.waitpid(child, 0)[1]

    with unwritten_code():
        assert answer(False) == 0
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(answer, True).result() == 0
    assert answer(True) == 0
