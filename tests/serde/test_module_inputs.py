"""pytree knows the classes of modules among example inputs, for as long as somebody needs them."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._export import utils as export_utils
from torch.export import export
from torch.fx import _pytree as fx_pytree
from torch.utils import _pytree as pytree

from fxpress._torch import serde as compat
from fxpress.serialize import deserialize, serialize

# torch registers classes of modules with a function that it calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.utils._pytree._register_pytree_node`")


class Given(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Applies(nn.Module):
    def forward(self, x: Tensor, module: nn.Module) -> Any:
        return module(x) + 1


def is_known() -> bool:
    tables = (
        pytree.SUPPORTED_NODES,
        pytree.SUPPORTED_SERIALIZED_TYPES,
        fx_pytree.SUPPORTED_NODES,
    )
    found = {Given in table for table in tables}
    assert len(found) == 1
    return found.pop()


def test_classes_that_the_user_has_registered() -> None:
    program = export(Applies(), (torch.ones(2), Given()), strict=False)
    assert not is_known()  # torch forgets the class after an export
    export_utils.register_module_as_pytree_input_node(Given)
    try:
        deserialize(serialize(program), allow_pickle=True)
        assert is_known()
    finally:
        export_utils.deregister_module_as_pytree_input_node(Given)


def test_a_block_that_nobody_closed() -> None:
    """A block is left open, as after an interrupt while it is closed."""
    block = compat.module_inputs(((Given(),), {}))
    block.__enter__()
    assert is_known()
    del block
    gc.collect()
    assert not is_known()


def test_an_interrupt_while_a_class_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    register = export_utils.register_module_as_pytree_input_node

    def interrupted(cls: Any) -> None:
        register(cls)
        raise KeyboardInterrupt

    monkeypatch.setattr(export_utils, "register_module_as_pytree_input_node", interrupted)
    block = compat.module_inputs(((Given(),), {}))
    with pytest.raises(KeyboardInterrupt):
        block.__enter__()
    assert not is_known()
    del block
    gc.collect()
    assert not compat._module_uses
