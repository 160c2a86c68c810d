"""Initialize lazy modules, whose first call creates their parameters."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn import Module

from fxpress._torch import tracking as compat
from fxpress._torch.tracking import Args, Kwargs, Translator


def initialize_lazy_module(tx: Translator, mod: Module, args: Args, kwargs: Kwargs) -> None:
    """Create the parameters of a lazy module, as its first call does; ignore other modules.

    The live module changes during the trace. The shapes of its parameters follow from the shapes of
    the arguments' fake tensors, with hints in place of symbolic sizes.

    Stands in for ``torch._dynamo.variables.nn_module.initialize_lazy_module``.

    Args:
        tx: the translator of the code that calls the module.
        mod: the module, which is changed.
        args, kwargs: the arguments of the call, as variables of Dynamo.

    Raises:
        ObservedAttributeError: the module's own code raised AttributeError.

    Example:
        >>> lazy = torch.nn.LazyLinear(2)
        >>> with fxpress.installed():
        ...     result = torch.compile(lazy, backend="eager")(torch.ones(3, 4))
        >>> lazy.weight.shape
        torch.Size([2, 4])
    """
    if inspect.getattr_static(mod, "_initialize_hook", None) is None:
        return  # not a lazy module (getattr_static does not run a user's `__getattr__`)

    def fake(value: Any) -> Any:
        if isinstance(value, torch.fx.Proxy):
            return _of_known_sizes(compat.get_fake_value(value.node, tx))
        if compat.is_namedtuple(value):
            return type(value)(*map(fake, value))
        if isinstance(value, dict):
            return {key: fake(each) for key, each in value.items()}
        if isinstance(value, (list, tuple, set)):
            return type(value)(map(fake, value))
        return value

    positional, named = compat.proxy_args_kwargs(args, kwargs)
    fake_args = [fake(value) for value in positional]
    fake_kwargs = fake(dict(named))
    infer: Any = mod._infer_parameters
    try:
        infer(mod, fake_args, fake_kwargs)
    except AttributeError:
        compat.raise_observed(
            tx, AttributeError, "AttributeError during lazy module initialization"
        )


def _of_known_sizes(fake: Any) -> Any:
    """Replace a fake tensor with symbolic sizes by a real tensor whose sizes are the hints.

    The code that creates a lazy module's parameters runs on the live module, with real sizes.
    """
    if not (isinstance(fake, torch.Tensor) and fake._has_symbolic_sizes_strides):
        return fake
    sizes = [compat.size_hint(size) for size in fake.shape]
    if None in sizes:
        raise AssertionError(f"expected known sizes for a lazy module, got {fake.shape}")
    return torch.empty(sizes, dtype=fake.dtype, device=fake.device)
