"""The most used architectures of transformers, with small sizes and any number of layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.support.exported import small_config, tokens, transformer_configs

# The families with which the corpus and the benchmark "models" test every step of export.
FAMILIES = (
    "llama",
    "qwen3",
    "qwen3_moe",
    "mixtral",
    "gemma",
    "bert",
    "t5",
    "whisper",
    "clip",
    "vit",
)
# Names in `transformer_configs` and `_further_configs`.
NAMES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
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
    "whisper",  # sounds
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


def architecture(name: str, layers: int, *, masked: bool = False) -> Architecture:
    """Return a model of `NAMES`; with `masked`, the arguments include the mask of the tokens."""
    import transformers as hf

    config = {**transformer_configs(layers), **_further_configs(layers)}[name]
    writes_text = type(config) in hf.MODEL_FOR_CAUSAL_LM_MAPPING and name not in _WITHOUT_HEAD
    auto = hf.AutoModelForCausalLM if writes_text else hf.AutoModel
    torch.manual_seed(0)
    model = hf.CLIPTextModel(config) if name == "clip" else auto.from_config(config)
    return Architecture(model.eval(), *inputs(name, masked=masked))


def inputs(
    name: str, rows: int = 2, columns: int = 8, *, masked: bool = False
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Arguments of a model: `rows` samples, of `columns` tokens each."""
    torch.manual_seed(0)
    text = tokens(rows, columns)
    if name == "vit":
        return (torch.randn(rows, 3, 16, 16),), {}
    if name == "whisper":
        return (), {"input_features": torch.randn(rows, 8, 32), "decoder_input_ids": text}
    mask = {"attention_mask": torch.ones_like(text)} if masked else {}
    if name == "t5":
        return (), {"input_ids": text, "decoder_input_ids": text, **mask}
    return (text,), mask


def with_cache(name: str, layers: int) -> Architecture:
    """A decoder that returns the keys and values of its layers, as when it reads a prompt."""
    from transformers.integrations.executorch import register_dynamic_cache_export_support

    register_dynamic_cache_export_support()
    made = architecture(name, layers, masked=True)
    made.model.config.use_cache = True
    return made


_WITHOUT_HEAD = ("bert", "roberta", "electra", "whisper")


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
        "qwen3_moe": hf.Qwen3MoeConfig(
            **decoder, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
        ),
        "whisper": hf.WhisperConfig(
            d_model=32,
            encoder_layers=layers,
            decoder_layers=layers,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            num_mel_bins=8,
            max_source_positions=16,
            max_target_positions=64,
            **dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id"), 0),
            decoder_start_token_id=1,
            **sizes,
        ),
        "mixtral": hf.MixtralConfig(**decoder, num_local_experts=2, num_experts_per_tok=1),
        "clip": hf.CLIPTextConfig(**encoder),
        "electra": hf.ElectraConfig(**encoder, embedding_size=32),
        "bloom": hf.BloomConfig(hidden_size=32, n_layer=layers, n_head=4, **sizes),
        "deberta": hf.DebertaV2Config(**encoder),
    }


def _without_text(sizes: dict[str, Any]) -> dict[str, Any]:
    text = "vocab_size", "max_position_embeddings"
    return {key: value for key, value in sizes.items() if key not in text}
