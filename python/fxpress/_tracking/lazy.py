"""Lazy modules, which get their parameters at their first call."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Module

from fxpress._torch.tracking import (
    Args,
    Kwargs,
    Translator,
    get_fake_value,
    is_namedtuple,
    proxy_args_kwargs,
    raise_observed,
)


def initialize_lazy_module(
    tx: Translator,
    mod: Module,
    args: Args,
    kwargs: Kwargs,
) -> None:
    """Give a lazy module its parameters, as its first call would; other modules stay as they are.

    The module itself changes while it is traced: its parameters have the shapes that the fake
    tensors behind the arguments ask for.

    Stands in for ``torch._dynamo.variables.nn_module.initialize_lazy_module``.

    Raises:
        ObservedAttributeError: the module's own code raised AttributeError.
    """
    if not hasattr(mod, "_initialize_hook"):
        return

    def fake(value: Any) -> Any:
        if isinstance(value, torch.fx.Proxy):
            return get_fake_value(value.node, tx)
        if is_namedtuple(value):
            return type(value)(*map(fake, value))
        if isinstance(value, dict):
            return {key: fake(each) for key, each in value.items()}
        if isinstance(value, (list, tuple, set)):
            return type(value)(map(fake, value))
        return value

    positional, named = proxy_args_kwargs(args, kwargs)
    fake_args = [fake(value) for value in positional]
    fake_kwargs = fake(dict(named))
    infer: Any = mod._infer_parameters
    try:
        infer(mod, fake_args, fake_kwargs)
    except AttributeError:
        raise_observed(tx, AttributeError, "AttributeError during lazy module initialization")
