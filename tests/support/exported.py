"""Graphs from torch's own case collections and from real models."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.export import Dim, ExportedProgram, export


@contextlib.contextmanager
def skipped_unless_exported() -> Iterator[None]:
    """Run a block that exports a case; skip the test if torch cannot export it."""
    try:
        yield
    except Exception as error:
        pytest.skip(f"torch does not export it: {type(error).__name__}")


def exported_or_skipped(model: Any, *args: Any, **options: Any) -> ExportedProgram:
    with skipped_unless_exported():
        return export(model, *args, **options)


@functools.cache
def exportdb_cases() -> dict[str, Any]:
    from torch._export.db.examples import all_examples

    return all_examples()


def exportdb_program(name: str) -> ExportedProgram:
    case = exportdb_cases()[name]
    return export(
        case.model,
        case.example_args,
        case.example_kwargs,
        dynamic_shapes=case.dynamic_shapes,
        strict=False,
    )


@functools.cache
def module_db_cases() -> dict[str, tuple[Any, Callable[[], nn.Module]]]:
    """Return the forward input, and a factory of the module, for the first sample of each class."""
    from torch.testing._internal.common_modules import module_db

    cases: dict[str, tuple[Any, Callable[[], nn.Module]]] = {}
    for info in module_db:
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=False
        )
        for sample in samples:
            if sample.forward_input is None:
                continue
            build = functools.partial(
                info.module_cls, *sample.constructor_input.args, **sample.constructor_input.kwargs
            )
            cases[info.name] = sample.forward_input, build
            break
    return cases


def small_config(layers: int) -> dict[str, Any]:
    """Sizes of a small transformer."""
    return {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "vocab_size": 64,
        "max_position_embeddings": 64,
        "use_cache": False,
    }


def transformer_configs(layers: int = 2) -> dict[str, Any]:
    """Small configurations of real architectures; weights are random."""
    import transformers as hf

    small = small_config(layers)
    decoder = {**small, "num_key_value_heads": 2}
    return {
        "llama": hf.LlamaConfig(**decoder),
        "qwen3": hf.Qwen3Config(**decoder, head_dim=8),
        "mistral": hf.MistralConfig(**decoder, sliding_window=None),
        "gemma": hf.GemmaConfig(**decoder, head_dim=8),
        "phi": hf.PhiConfig(**small),
        "opt": hf.OPTConfig(**{**small, "ffn_dim": 64, "word_embed_proj_dim": 32}),
        "gpt_neox": hf.GPTNeoXConfig(**small),
        "bert": hf.BertConfig(**small),
        "gpt2": hf.GPT2Config(n_embd=32, n_layer=layers, n_head=4, vocab_size=64, use_cache=False),
    }


def operator_samples(info: Any, dtype: torch.dtype) -> Iterator[Any]:
    """Return torch's sample inputs for an operator.

    `info.sample_inputs` would need half of a test's time, to read the source of each stack frame.
    """
    torch.manual_seed(0)
    return iter(info.sample_inputs_func(info, "cpu", dtype, False))


def from_config(config: Any) -> nn.Module:
    """A model of transformers with random weights."""
    import transformers as hf

    torch.manual_seed(0)
    auto = hf.AutoModel if config.model_type == "bert" else hf.AutoModelForCausalLM
    return auto.from_config(config, attn_implementation="sdpa").eval()


def transformer(name: str, layers: int = 2) -> nn.Module:
    """A small transformer, by the name of its configuration."""
    return from_config(transformer_configs(layers)[name])


def tokens(rows: int = 2, columns: int = 8) -> torch.Tensor:
    """An input of a small transformer."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 64, (rows, columns), generator=generator)


def dynamic_shapes(args: Any, kwargs: Any, dims: int) -> tuple[Any, ...]:
    """Dynamic shapes of a call: a symbol for each of the first dimensions of each tensor."""

    def symbols(x: Any) -> Any:
        count = min(dims, x.dim()) if isinstance(x, torch.Tensor) else 0
        return dict.fromkeys(range(count), Dim.AUTO) or None

    return (*pytree.tree_map(symbols, args), *pytree.tree_map(symbols, kwargs).values())
