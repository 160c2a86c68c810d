"""Convert the arguments of operators that call Triton kernels or models lowered by AOTInductor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch

from fxpress._torch import serde as compat

_POSITIONAL, _KEYWORD = 1, 2  # values of `schema.ArgumentKind`
_Input = tuple[str, Any, int]  # name, value, ArgumentKind
_CONSTEXPR = re.compile(r"\('constexpr',\s*([^)]+)\)")
_TUNED = ("num_cpu_threads", "num_warps", "num_stages", "num_ctas")
# Settings that compiled kernels for some accelerators have.
_OPTIONAL = ("tile_width", "tile_height", "base_pe")


def is_metadata_matched(config: Any, entry_metadata: Any) -> bool:
    """Return whether a configuration and a kernel's metadata agree in the settings that both have.

    Stands in for `torch._export.serde.serialize.is_metadata_matched`.
    """
    return all(
        getattr(config, name) == getattr(entry_metadata, name)
        for name in _TUNED
        if hasattr(config, name) and hasattr(entry_metadata, name)
    )


def _only(caches: dict[Any, Any], what: str) -> Any:
    if len(caches) != 1:
        raise AssertionError(f"expected exactly 1 {what}, got {len(caches)}")
    return next(iter(caches.values()))


def _cache_of(kernel: Any) -> dict[str, Any]:
    """Return signature -> compiled kernel, for the only device of a Triton kernel."""
    found: dict[str, Any]
    if hasattr(kernel, "device_caches"):
        found = _only(kernel.device_caches, "device cache")[0]
    elif hasattr(kernel, "cache"):  # older releases of Triton, and Triton for the CPU
        found = _only(kernel.cache, "cache key")
    else:
        raise AssertionError(f"kernel caches not found for kernel {kernel.__name__}")
    return found


def _parse_constant(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text)
    except ValueError:
        return text


def _with_constants(kernel: Any, given: dict[str, Any], cache: dict[str, Any]) -> list[Any]:
    """Return the compiled kernels of `cache` that fit the constants in a call's arguments."""
    names = [kernel.arg_names[i] for i in kernel.constexprs if i < len(kernel.arg_names)]
    values = [given[name] for name in names if name in given]
    wanted = [v if isinstance(v, (bool, int, float)) else str(v) for v in values]
    found = ((_CONSTEXPR.findall(key), entry) for key, entry in cache.items())
    return [
        entry for texts, entry in found if texts and [_parse_constant(t) for t in texts] == wanted
    ]


def get_triton_kernel_and_cache_entry(node: torch.fx.Node) -> tuple[Any, Any]:
    """Return the Triton kernel that a node calls, and the compiled kernel that the call ran.

    Stands in for `torch._export.serde.serialize.get_triton_kernel_and_cache_entry`.

    Raises:
        AssertionError: the node does not call a Triton kernel, Triton is not available, or the
            number of compiled kernels that match the call is not 1.
    """
    if node.target is not compat.triton_kernel_wrapper_functional:
        raise AssertionError(f"expected triton_kernel_wrapper_functional, got {node.target}")
    if not compat.can_use_triton():
        raise AssertionError("triton required to serialize triton kernels")
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    index = node.kwargs["kernel_idx"]
    if not isinstance(index, int):
        raise AssertionError(f"expected kernel_idx to be int, got {type(index)}")
    registered: Any = compat.kernel_side_table.get_kernel(index)
    kernel = registered.fn if isinstance(registered, Autotuner) else registered
    cache = _cache_of(kernel)
    if len(cache) == 1:
        return kernel, next(iter(cache.values()))
    entries = list(cache.values())
    if isinstance(kernel, JITFunction) and getattr(kernel, "constexprs", None):
        given = node.kwargs.get("kwargs", {})
        entries = _with_constants(kernel, given if isinstance(given, dict) else {}, cache)
    if len(entries) > 1 and isinstance(registered, Autotuner):
        entries = [
            entry
            for entry in entries
            if any(is_metadata_matched(config, entry.metadata) for config in registered.configs)
        ][:1]
    if len(entries) != 1:
        raise AssertionError(
            f"expected one compiled kernel of {kernel.__name__} for the call in node {node.name}, "
            f"found {len(entries)} among {list(cache)}"
        )
    return kernel, entries[0]


def _kernel_inputs(node: torch.fx.Node) -> list[_Input]:
    kernel, entry = get_triton_kernel_and_cache_entry(node)
    metadata = entry.metadata
    results, given, grid = node.meta["val"], node.kwargs["kwargs"], node.kwargs["grid"]
    for value, kind, name in (
        (results, dict, "val"),
        (given, dict, "kwargs"),
        (grid, list, "grid"),
    ):
        if not isinstance(value, kind):
            raise AssertionError(f"expected {name} to be {kind.__name__}, got {type(value)}")
    parameters = [p for p in kernel.params if not p.is_constexpr]
    constants = {p.name for p in kernel.params if p.is_constexpr}  # compiled into the kernel
    names = list(given)
    positional = [name for name in names if name not in constants]
    if names[: len(positional)] != positional:
        raise AssertionError("non-constexpr args found after constexpr arg(s)")
    settings = {
        "name": f"{kernel.fn.__name__}_{metadata.hash}",
        "grid": grid[0],
        "output_indices": [i for i, name in enumerate(positional) if name in results],
        "num_warps": metadata.num_warps,
    }
    if hasattr(metadata, "num_cpu_threads"):
        settings["num_cpu_threads"] = metadata.num_cpu_threads
    if hasattr(metadata, "shared"):
        shared = metadata.shared
        settings["shared_memory_bytes"] = int(shared) if isinstance(shared, bool) else shared
    settings.update(
        (name, getattr(metadata, name)) for name in _OPTIONAL if hasattr(metadata, name)
    )
    settings["kernel_param_names"] = [p.name for p in parameters]
    # Kernels of some backends do not store the types of their parameters; use the annotations.
    compiled = getattr(getattr(entry, "src", None), "signature", None) or {}
    settings["kernel_param_types"] = [str(compiled.get(p.name, p.annotation)) for p in parameters]
    return [
        *((name, given[name], _POSITIONAL) for name in positional),
        *((name, value, _KEYWORD) for name, value in settings.items()),
    ]


def _is_object(value: Any) -> bool:
    return isinstance(value, torch.fx.Node) and isinstance(
        value.meta.get("val"), compat.graph_signature.CustomObjArgument
    )


def _delegate_inputs(node: torch.fx.Node) -> list[_Input]:
    """Return a call's inputs: the compiled model's path, None for its graph, then the arguments."""
    lowered: Any = node.args[0]
    owner = node.graph.owning_module
    if not hasattr(owner, lowered.name):
        raise AssertionError(f"owning_module does not have attribute {lowered.name}")
    args = [getattr(owner, lowered.name).aoti_path, None, *node.args[2:]]
    if isinstance(args[2], Iterable):  # the schema only allows tensors as weights
        args[2] = [weight for weight in args[2] if not _is_object(weight)]
    return [
        *(("", value, _POSITIONAL) for value in args),
        *((name, value, _KEYWORD) for name, value in node.kwargs.items()),
    ]


def special_inputs(node: torch.fx.Node) -> list[_Input]:
    """Return the inputs of a call of a kernel or a lowered model as stored in a file."""
    if node.target is compat.triton_kernel_wrapper_functional:
        return _kernel_inputs(node)
    return _delegate_inputs(node)
