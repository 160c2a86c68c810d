"""Export a transformers model, save it, load it, and compare the loaded program with the model."""

import tempfile
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import fxpress


class Logits(torch.nn.Module):
    """A model that returns only logits, without transformers' cache and class of results."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(tokens, use_cache=False, return_dict=False)[0]
        return logits


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        vocab_size=256,
    )
    model = Logits(LlamaForCausalLM(config)).eval()  # random weights: nothing is downloaded
    tokens = torch.randint(0, 256, (2, 16))

    start = time.perf_counter()
    with fxpress.installed():  # makes torch.export.export faster
        program = torch.export.export(model, (tokens,))
    print(f"exported {len(program.graph.nodes)} nodes in {time.perf_counter() - start:.1f} s")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "llama.pt2")
        start = time.perf_counter()
        fxpress.save(program, path)  # the bytes that torch.export.save writes
        print(f"saved {path.stat().st_size:,} bytes in {time.perf_counter() - start:.2f} s")
        start = time.perf_counter()
        loaded = fxpress.load(path)  # no code in the file is run
        print(f"loaded in {time.perf_counter() - start:.2f} s")

    assert fxpress.graph_hash(loaded) == fxpress.graph_hash(program)
    with torch.no_grad():
        torch.testing.assert_close(loaded.module()(tokens), model(tokens))
    print("the loaded program computes what the model computes")


if __name__ == "__main__":
    main()
