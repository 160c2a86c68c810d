"""Write the facts about torch for commands that do not import torch.

    python tools/write_torch_facts.py [PYTHON...]

Run it with the newest torch that fxpress supports, and pass a Python for each older release. It
writes python/fxpress/_files/format/torch.json: the schema of programs in files, the operators with
effects other than new values, and the operators that a file may call.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from fxpress._files.serde.damage import UnknownNameError
from fxpress._files.serde.hashing import _describe
from fxpress._files.serde.schema import TYPES, describe
from fxpress._files.serde.targets import _FUNCTIONS, find_target
from new_torch import OPERATORS, ask, reach_outside

FILE = Path(__file__).parent.parent / "python/fxpress/_files/format/torch.json"
_NAMESPACES = ("aten", "prims", "quantized", "_c10d_functional", "mkldnn", "inductor", "export")
_HIGHER_ORDER = """
    _export_tracepoint aoti_call_delegate associative_scan auto_functionalized
    auto_functionalized_v2 autograd_function_apply call_torchbind cond executorch_call_delegate
    flat_apply flex_attention flex_attention_backward flex_gemm foreach_map hints_wrapper
    invoke_quant invoke_quant_packed invoke_subgraph local_map_hop map_impl out_dtype print
    run_const_graph scan strict_mode switch tag_activation_checkpoint
    triton_kernel_wrapper_functional while_loop
    while_loop_stack_output with_effects wrap wrap_activation_checkpoint wrap_with_autocast
    wrap_with_set_grad_enabled
"""
# Reason -> the namespaces, higher-order operators and functions of torch that files may call.
_CALLABLE = {
    "functions of tensors, of which programs are made": ("aten", "prims", "torch_nn"),
    "functions of quantized tensors": ("quantized", "quantized_decomposed"),
    "marks in exported programs, which compute nothing": ("export", "pippy"),
    "collectives: they run in a process group that the user has made": (
        *("_c10d_functional", "_c10d_functional_autograd", "_dtensor"),
    ),
    "what exported programs call with graphs, or with operators, which have to be callable too": [
        f"higher_order.{name}" for name in _HIGHER_ORDER.split()
    ],
    "functions of numbers, and the modes of exported programs": sorted(_FUNCTIONS),
}
# Namespaces of operators that other builds of torch register.
_OTHERS = (
    *("metal_prepack", "prepacked", "rpc", "semi_structured", "triton", "vulkan_prepack"),
    "xnnpack",
)
# Operators that access more than their arguments although their schema does not show it -> how.
_OUTSIDE = {
    "torch.export.custom_ops._call_custom_autograd_function_in_pre_dispatch": (
        "it imports the module that its first argument names"
    ),
    "aten.dist_backward.default": "it calls other processes",
    "aten._print": "it prints a text of the file",
    "aten.warn": "it prints a text of the file",
}


def rules(known: dict[str, list[list[str]]]) -> dict[str, Any]:
    """Return the rules about all operators of torch; see `torch_facts.refusal`."""
    listed = {name for names in _CALLABLE.values() for name in names}
    outside, others = dict(_OUTSIDE), set(_OTHERS)
    for operator, arguments in sorted(known.items()):
        namespace = operator.partition(".")[0]
        if listed.isdisjoint((namespace, operator)):
            others.add(operator if namespace == "higher_order" else namespace)
        elif reason := reach_outside(operator, arguments):
            outside[operator] = reason
    groups = [[reason, list(names)] for reason, names in _CALLABLE.items()]
    return {"callable": groups, "outside": outside, "others": sorted(others)}


def operators() -> dict[str, list[Any]]:
    """Return the traits of torch's operators, by their names in files."""
    texts = set(_FUNCTIONS)
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        if namespace in _NAMESPACES:
            packet, _, overload = rest.partition(".")
            texts.add(f"torch.ops.{namespace}.{packet}.{overload or 'default'}")
    for operator in torch._ops._higher_order_ops:
        texts.add(f"torch.ops.higher_order.{operator}")
    found = {}
    for text in sorted(texts):
        try:
            found[text] = list(_describe(find_target(text)))
        except UnknownNameError:
            continue  # an operator with an implementation, but without a schema
    return found


def facts(pythons: list[str]) -> dict[str, Any]:
    """Return the content of the file."""
    known: dict[str, Any] = {}
    for python in pythons:
        known |= ask(python, OPERATORS)
    return {
        "torch": torch.__version__.partition("+")[0],
        "schema": [describe(cls) for cls in TYPES.values()],
        "operators": operators(),
        "rules": rules(known),
    }


if __name__ == "__main__":
    FILE.write_text(
        json.dumps(facts([*sys.argv[1:], sys.executable]), separators=(",", ":")) + "\n"
    )
    print(f"{FILE.stat().st_size:,} bytes")
