"""The architectures that transformers is used for most, small and with any number of layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.support.exported import small_config, transformer_configs

# Those of `transformer_configs`, and what tells them from the rest.
NAMES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma3",  # two kinds of layers with a period
    "phi",
    "phi3",
    "opt",
    "gpt2",
    "gpt_neox",
    "bert",
    "roberta",
    "distilbert",
    "t5",  # an encoder and a decoder
    "vit",  # images
    "falcon",
    "mixtral",  # experts
    "clip",
    "electra",
    "bloom",
    "deberta",
)


@dataclass(frozen=True)
class Architecture:
    """A model with random weights, and the arguments of a call."""

    model: nn.Module
    args: tuple[torch.Tensor, ...]
    kwargs: dict[str, torch.Tensor]


def architecture(name: str, layers: int) -> Architecture:
    """One of `NAMES`."""
    import transformers as hf

    config = {**transformer_configs(layers), **_further_configs(layers)}[name]
    tokens = torch.randint(3, 60, (2, 8), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    if name == "vit":
        return Architecture(hf.ViTModel(config).eval(), (torch.randn(1, 3, 16, 16),), {})
    if name == "clip":
        return Architecture(hf.CLIPTextModel(config).eval(), (tokens,), {})
    writes_text = type(config) in hf.MODEL_FOR_CAUSAL_LM_MAPPING and name not in _ENCODERS
    auto = hf.AutoModelForCausalLM if writes_text else hf.AutoModel
    model = auto.from_config(config).eval()
    if name == "t5":
        return Architecture(model, (), {"input_ids": tokens, "decoder_input_ids": tokens})
    return Architecture(model, (tokens,), {})


_ENCODERS = ("bert", "roberta", "electra")


def _further_configs(layers: int) -> dict[str, Any]:
    import transformers as hf

    small = small_config(layers)
    decoder = {**small, "num_key_value_heads": 2}
    encoder = {key: value for key, value in small.items() if key != "use_cache"}
    sizes = {"vocab_size": 64, "use_cache": False}
    own_names = {"dim": 32, "hidden_dim": 64, "n_layers": layers, "n_heads": 4}
    return {
        "qwen2": hf.Qwen2Config(**decoder),
        "gemma3": hf.Gemma3TextConfig(**decoder, head_dim=8, sliding_window=16),
        "phi3": hf.Phi3Config(**decoder, pad_token_id=0),
        "roberta": hf.RobertaConfig(**{**small, "max_position_embeddings": 66}),
        "distilbert": hf.DistilBertConfig(vocab_size=64, max_position_embeddings=64, **own_names),
        "t5": hf.T5Config(
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=layers,
            num_heads=4,
            decoder_start_token_id=0,
            **sizes,
        ),
        "vit": hf.ViTConfig(**_without_text(encoder), image_size=16, patch_size=8),
        "falcon": hf.FalconConfig(**small),
        "mixtral": hf.MixtralConfig(**decoder, num_local_experts=2, num_experts_per_tok=1),
        "clip": hf.CLIPTextConfig(**encoder),
        "electra": hf.ElectraConfig(**encoder, embedding_size=32),
        "bloom": hf.BloomConfig(hidden_size=32, n_layer=layers, n_head=4, **sizes),
        "deberta": hf.DebertaV2Config(**encoder),
    }


def _without_text(sizes: dict[str, Any]) -> dict[str, Any]:
    text = "vocab_size", "max_position_embeddings"
    return {key: value for key, value in sizes.items() if key not in text}
