"""Find the kind of an operator, the color of a kind, and the partition of a module."""

from __future__ import annotations

import re

from fxpress._tools.view.flops import is_product
from fxpress._tools.view.nodes import Node

_PARTITION = re.compile(r"(?:^|\.)submod_(\d+)(?:\.|$)")  # names of `split_module`'s partitions
_NORMALIZATION = re.compile(r"(_norm|norm$|dropout)")
_ACTIVATIONS = frozenset(
    (
        *("relu", "relu6", "gelu", "silu", "elu", "selu", "celu", "glu", "mish", "hardswish"),
        *("sigmoid", "hardsigmoid", "logsigmoid", "tanh", "hardtanh", "leaky_relu", "prelu"),
        *("softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax", "softplus"),
    )
)
_SHAPES = frozenset(
    (
        *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "permute", "transpose", "t"),
        *("expand", "expand_as", "squeeze", "unsqueeze", "slice", "select", "narrow", "split"),
        *("split_with_sizes", "chunk", "unbind", "cat", "stack", "repeat", "repeat_interleave"),
        *("contiguous", "clone", "alias", "as_strided", "movedim", "flip", "roll", "pad"),
        *("constant_pad_nd", "numpy_T", "mT", "pixel_shuffle", "unfold", "view_as", "copy"),
    )
)
_REDUCTIONS = frozenset(
    (
        *("sum", "mean", "prod", "max", "min", "amax", "amin", "argmax", "argmin", "any", "all"),
        *("var", "std", "var_mean", "norm", "linalg_vector_norm", "cumsum", "cumprod", "topk"),
        *("sort", "argsort", "logsumexp", "median", "count_nonzero"),
    )
)
_INDEXING = frozenset(
    (
        *("embedding", "embedding_bag", "index", "index_select", "index_put", "gather"),
        *("scatter", "scatter_add", "masked_fill", "masked_select", "where", "nonzero", "take"),
    )
)
_POOLING = re.compile(r"(_pool|^max_pool|upsample|interpolate)")
_CREATION = frozenset(
    (
        *("zeros", "ones", "full", "empty", "arange", "linspace", "zeros_like", "ones_like"),
        *("full_like", "empty_like", "scalar_tensor", "rand", "randn", "rand_like", "randn_like"),
        *("eye", "tril", "triu", "lift_fresh_copy", "detach", "detach_"),
    )
)
COLORS = {
    "matrix product, convolution, attention": "#f4a582",
    "normalization": "#c2a5cf",
    "activation": "#a6dba0",
    "layout": "#d9d9d9",
    "reduction": "#92c5de",
    "indexing": "#fdd49e",
    "pooling": "#b3cde3",
    "new tensor": "#ffffcc",
    "cast or copy between devices": "#fbb4ae",
    "with bodies": "#e5d8bd",
    "size or check": "#f2f2f2",
    "arithmetic": "#ccece6",
    "another library": "#fde0ef",
}


def kind_of(node: Node) -> str | None:
    """Return the kind of a node's operator; None for an input or the outputs."""
    label, target = node.label, node.target
    if target is None:
        return None
    if node.bodies:
        return "with bodies"
    if not target.startswith("aten."):
        return "size or check" if target.startswith(("_operator", "math.")) else "another library"
    plain = label if label.startswith("_") else label.rstrip("_")
    for kind, holds in (
        ("matrix product, convolution, attention", is_product(label)),
        ("normalization", _NORMALIZATION.search(plain) is not None),
        ("activation", plain in _ACTIVATIONS),
        ("layout", plain in _SHAPES),
        ("reduction", plain in _REDUCTIONS),
        ("indexing", plain in _INDEXING),
        ("pooling", _POOLING.search(plain) is not None),
        ("new tensor", plain in _CREATION),
        ("cast or copy between devices", plain in ("to", "_to_copy", "type_as", "copy_to")),
        ("size or check", plain.startswith(("sym_", "_assert"))),
    ):
        if holds:
            return kind
    return "arithmetic"


def partition_of(path: str) -> int | None:
    """Return the number of a module's partition; None if it is not in a partition."""
    found = _PARTITION.search(path)
    return int(found[1]) if found and len(found[1]) < 10 else None
