"""unflatten against torch, and against eager, on real architectures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import export

pytest.importorskip("transformers")

from tests.support.exported import from_config, tokens, transformer
from tests.support.unflatten_cases import assert_unflattens_as_torch, quietly
from tests.support.unflatten_compare import assert_runs_as_eager

pytestmark = pytest.mark.slow("each case is done by torch too")

STRICT = pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "use_cache": False,
}


@pytest.mark.parametrize("name", ["bert", "gpt2", "opt", "qwen3"])
def test_transformer_in_training(name: str) -> None:
    """Gradients of every parameter; dropout draws the same numbers."""
    model = transformer(name).train()
    program = export(model, (tokens(),), strict=False)
    ours = quietly(program)
    assert_runs_as_eager(ours, model, (tokens(),), gradients=True)


@STRICT
def test_160937_llama_3_runs(strict: bool) -> None:
    """pytorch#160937: torch's module did not take the input that the program takes."""
    import transformers as hf

    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    config = hf.LlamaConfig(
        **SMALL, rope_parameters={"rope_theta": 500000.0, **scaling}, tie_word_embeddings=True
    )
    model = from_config(config)
    program = export(model, (tokens(),), strict=strict)
    program.module()(tokens())
    assert_unflattens_as_torch(program, model, (tokens(),), tolerant=strict)


@STRICT
def test_160937_qwen_3_runs(strict: bool) -> None:
    import transformers as hf

    model = from_config(hf.Qwen3Config(**SMALL, head_dim=16, tie_word_embeddings=True))
    program = export(model, (tokens(),), strict=strict)
    program.module()(tokens())
    assert_unflattens_as_torch(program, model, (tokens(),), tolerant=strict)


def test_mixture_of_experts_written_out_as_modules() -> None:
    """Thousands of small modules, called under names that sort differently as text."""

    class Expert(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Linear(4, 8)
            self.down = torch.nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(torch.nn.functional.silu(self.up(x)))

    class Mixture(torch.nn.Module):
        def __init__(self, experts: int) -> None:
            super().__init__()
            self.router = torch.nn.Linear(4, experts)
            self.experts = torch.nn.ModuleList(Expert() for _ in range(experts))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weights = self.router(x).softmax(-1)
            parts = [e(x) * weights[..., i : i + 1] for i, e in enumerate(self.experts)]
            return torch.stack(parts).sum(0)

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Mixture(12) for _ in range(2)))
    x = torch.randn(3, 4)
    assert_unflattens_as_torch(export(model, (x,), strict=False), model, (x,), gradients=True)
