"""Add inputs of a graph by copying equal inputs, which is faster than Dynamo's code for inputs."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any, cast

import torch
from torch._dynamo import config
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.utils import _extract_tensor_dict, get_unique_name_wrt
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import GraphArg, TrackedFake, _clone_input
from torch._guards import Source
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import TensorWeakRef

from fxpress import _native
from fxpress._torch.fakes import without_data


def copy_fake(like: Any, shares: torch.Tensor | None, symbol: Callable[[Any], Any]) -> torch.Tensor:
    """Copy a fake tensor, into the storage of `shares` if given; `symbol` maps each size."""
    size, stride = tuple(map(symbol, like.shape)), tuple(map(symbol, like.stride()))
    offset = symbol(like.storage_offset())
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        if shares is None and _is_whole(like):
            plain = without_data(size, stride, offset, like.dtype, None)
        else:
            if shares is None:
                bytes_ = symbol(like.untyped_storage().nbytes())
                shares = torch.empty(bytes_, dtype=torch.uint8, device="meta")
            plain = without_data(size, stride, offset, like.dtype, shares.untyped_storage())
        made: torch.Tensor = FakeTensor(like.fake_mode, plain, like.fake_device)
    if made._version != like._version:
        torch._C._autograd._unsafe_set_version_counter((made,), (like._version,))
    return made


def _is_whole(tensor: torch.Tensor) -> bool:
    """Return whether a tensor begins at offset 0 and uses all of its storage; False if symbolic."""
    if any(type(each) is not int for each in (*tensor.shape, *tensor.stride())):
        return False  # a comparison would add guards on symbols
    needed = _native.bytes_needed(tensor.shape, tensor.stride(), 0, tensor.element_size())
    return bool(tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == needed)


def can_copy_parameter(fake: Any) -> bool:
    """Return whether a fake parameter is as Dynamo creates it: fixed sizes, its own storage."""
    return (
        config.force_parameter_static_shapes
        and type(fake) is FakeTensor
        and vars(fake).get("_is_param") is True
        and all(type(size) is int for size in fake.shape)
        and fake.is_contiguous()
        and fake.untyped_storage().nbytes() == fake.numel() * fake.element_size()
    )


def copy_parameter(fake: Any, parameter: torch.Tensor) -> torch.Tensor | None:
    """Copy `fake` to create the fake tensor of `parameter`; None if Dynamo must create it."""
    mode = fake.fake_mode
    converter = mode.fake_tensor_converter
    meta = converter.meta_converter
    describer = meta.describer
    storage = parameter.untyped_storage()
    if (
        parameter in describer.lookup_tensor
        or storage in describer.lookup_storage
        or parameter.grad is not None
        or parameter._is_view()
        or storage.nbytes() != fake.untyped_storage().nbytes()
        or parameter.storage_offset()
    ):
        return None
    made: Any = copy_fake(fake, None, lambda size: size)
    made.requires_grad_(fake.requires_grad)
    made._is_param = True
    converter.set_tensor_memo(parameter, made)
    meta.set_storage_memo(describer.describe_storage(storage), made.untyped_storage())
    return cast("torch.Tensor", made)


@dataclasses.dataclass
class Input:
    """A parameter to add to the graph as an input, as Dynamo added the parameter `like`."""

    variable: Any  # the variable of `like`
    like: torch.Tensor
    parameter: Any
    fake: torch.Tensor  # the fake tensor of `parameter`
    source: Source  # the source of `parameter`


def add_placeholder(tx: Any, given: Input) -> VariableTracker:
    """Add a placeholder for `given.parameter` to the graph; return the parameter's variable."""
    output, parameter, source = tx.output, given.parameter, given.source
    name = re.sub(r"[^a-zA-Z0-9]+", "_", source.name)
    proxy = output.root_tracer.create_graph_input(name, type(parameter), given.fake, source=source)
    guard = functools.partial(GuardBuilder.TENSOR_MATCH, value=TensorWeakRef(parameter))
    made = _variable(tx, given, proxy, guard)
    made._is_name_set = True
    proxy.node.meta["tensor_dict"] = _extract_tensor_dict(parameter)
    output.input_source_to_var[source] = made
    proxy.node.meta["grapharg"] = GraphArg(source, parameter, False, given.fake)
    return cast(VariableTracker, made)


def add_attribute(
    tx: Any, given: Input, make_node: Callable[[str, dict[str, Any]], torch.fx.Node]
) -> VariableTracker:
    """Add a node that reads `given.parameter` to the graph; return the parameter's variable."""
    output, parameter, source = tx.output, given.parameter, given.source
    name = output.module_key_name(source.name)
    name = get_unique_name_wrt(name, output.nn_modules, output.global_scope)
    output.nn_modules[name] = parameter
    output.param_name_to_source[name] = source
    meta = {"example_value": given.fake, "tensor_dict": _extract_tensor_dict(parameter)}
    proxy = torch.fx.Proxy(make_node(name, meta), output.root_tracer)
    if tx.export:
        tracer = proxy.tracer
        if not isinstance(tracer.real_value_cache, _RealValues):
            tracer.real_value_cache = _RealValues(tracer.real_value_cache)
        tracer.real_value_cache.add(proxy.node, parameter, tx.fake_mode)
    made = _variable(tx, given, proxy, GuardBuilder.TENSOR_MATCH)
    made._is_name_set = False
    output.root_tracer.record_proxyable_vt(made)
    return cast(VariableTracker, made)


def _variable(tx: Any, given: Input, proxy: Any, guard: Any) -> Any:
    """Create the variable of an input, and record it in all of Dynamo's tables of inputs."""
    output, parameter, source = tx.output, given.parameter, given.source
    _note_fake(output, given.like, parameter, given.fake, source)
    install_guard(source.make_guard(guard))
    made = given.variable.clone(proxy=proxy, source=source, mutation_type=None)
    output.side_effects.track_object_existing(parameter, made)
    output.variable_tracker_cache[source] = made
    output.current_tracer.traced_sources.add(source)
    return made


class _RealValues(dict):  # type: ignore[type-arg]
    """Replaces Dynamo's `real_value_cache`, but copies a parameter only when it is read."""

    def __init__(self, values: dict[Any, Any]) -> None:
        super().__init__(values)
        self._pending: dict[Any, tuple[torch.Tensor, Any]] = {}

    def add(self, node: torch.fx.Node, value: torch.Tensor, fake_mode: Any) -> None:
        """Record the value of a node; a read of the value copies it."""
        self._pending[node] = value, fake_mode

    def __contains__(self, node: object) -> bool:
        return super().__contains__(node) or node in self._pending

    def __missing__(self, node: Any) -> Any:
        value, fake_mode = self._pending.pop(node)
        with torch._C.DisableTorchFunctionSubclass():
            made = self[node] = _clone_input(value, fake_mode)
        return made

    def pop(self, node: Any, *default: Any) -> Any:
        self._pending.pop(node, None)
        return super().pop(node, *default)

    def clear(self) -> None:
        self._pending.clear()
        super().clear()


def _note_fake(output: Any, like: Any, parameter: Any, fake: torch.Tensor, source: Source) -> None:
    contexts = output.tracing_context.tensor_to_context
    context = dataclasses.replace(
        contexts[like], tensor_source=source, shape_env_to_source_to_symbol_cache={}
    )
    contexts[parameter] = context
    output.input_source_to_sizes_strides[source] = {"size": fake.size(), "stride": fake.stride()}
    output.tracked_fakes.append(TrackedFake(fake, source, context))
    output.tracked_fakes_id_to_source[id(parameter)].append(source)
