"""The ready-made split callbacks on a real model."""

from __future__ import annotations

import re

import pytest
import torch
from torch import fx, nn
from torch.export import ExportedProgram

from fxpress.partition import around, balanced, by_module, draw
from fxpress.split_module import split_module
from tests.support.towers import ids_of, partition_names, texts_of

# ---- a real model -------------------------------------------------------------------------------

LAYERS = 2


@pytest.fixture(scope="module")
def llama() -> ExportedProgram:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.llama = model

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.llama(tokens, use_cache=False).logits

    return torch.export.export(Logits(), (torch.arange(10).reshape(2, 5),), strict=False)


def run_like(ep: ExportedProgram, gm: fx.GraphModule, tokens: torch.Tensor) -> torch.Tensor:
    """Return the result for the tokens of `gm`, which has the inputs of the program's graph."""
    state = {**ep.state_dict, **ep.constants}
    specs = ep.graph_signature.input_specs
    inputs = [tokens if spec.target is None else state[spec.target] for spec in specs]
    (logits,) = gm(*inputs)
    return logits


def assert_same_logits(ep: ExportedProgram, split: fx.GraphModule) -> None:
    tokens = torch.arange(20, 30).reshape(2, 5)
    with torch.no_grad():
        expected = run_like(ep, ep.graph_module, tokens)
        assert torch.equal(run_like(ep, split, tokens), expected)


def test_llama_around_attention(llama: ExportedProgram) -> None:
    gm = llama.graph_module
    callback = around(gm, ["aten::scaled_dot_product_attention"])
    assert callback.count == 2 * LAYERS + 1
    attention = gm.graph.find_nodes(
        op="call_function", target=torch.ops.aten.scaled_dot_product_attention.default
    )
    assert [callback(node) for node in attention] == [1, 3]
    assert [ids_of(callback).count(partition) for partition in (1, 3)] == [1, 1]
    split = split_module(gm, None, callback, keep_original_order=True)
    assert partition_names(split) == [f"submod_{index}" for index in range(5)]
    assert_same_logits(llama, split)
    boxes = texts_of(draw(split, format="svg"), "node")
    assert [box[0] for box in boxes] == partition_names(split)


def test_llama_by_layer(llama: ExportedProgram) -> None:
    gm = llama.graph_module
    callback = by_module(gm, path="llama.model.layers.*")
    # Every layer in one piece: embeddings | layer 0 | layer 1 | norm and head.
    assert callback.count == LAYERS + 2
    for node, partition in callback.ids.items():
        paths = [path for path, _ in node.meta["nn_module_stack"].values()]
        layers = {f"llama.model.layers.{layer}" for layer in range(LAYERS)} & set(paths)
        if layers:
            assert layers == {f"llama.model.layers.{partition - 1}"}
        else:
            assert partition in (0, LAYERS + 1)
    assert ids_of(by_module(gm, depth=4, path="llama.model.layers")) == ids_of(callback)
    split = split_module(gm, None, callback, keep_original_order=True)
    assert_same_logits(llama, split)
    assert len(texts_of(draw(split, format="svg"), "node")) == LAYERS + 2


@pytest.mark.parametrize("keep_original_order", [False, True])
def test_llama_in_stages(llama: ExportedProgram, keep_original_order: bool) -> None:
    gm, signature = llama.graph_module, llama.graph_signature
    callback = balanced(gm, 3, signature=signature, state_dict=llama.state_dict)
    assert callback.count == 3
    split = split_module(gm, None, callback, keep_original_order=keep_original_order)
    assert_same_logits(llama, split)
    svg = draw(split, format="svg", signature=signature, state_dict=llama.state_dict)
    boxes = texts_of(svg, "node")
    assert len(boxes) == 3
    # No tensor is used in two stages, so that the stages' sizes add up to that of the state in use.
    state = {**llama.state_dict, **llama.constants}
    inputs = zip(signature.input_specs, gm.graph.find_nodes(op="placeholder"), strict=True)
    used = [spec.target for spec, node in inputs if spec.target is not None and node.users]
    total = sum(state[name].numel() for name in used)
    sizes = [int(re.findall(r"([\d,]+) parameters", box[1])[0].replace(",", "")) for box in boxes]
    assert sum(sizes) == total
