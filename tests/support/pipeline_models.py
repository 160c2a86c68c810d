"""Models that are run in stages, with inputs and a loss."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.utils import _pytree as pytree

from tests.support.exported import small_config
from tests.support.pipelines import VOCABULARY, WIDTH, Tied, loss_of

LENGTH = 8


@dataclasses.dataclass
class Case:
    """A model with inputs.

    Attributes:
        model: creates the model.
        inputs: returns the inputs for a batch of some size, by name.
        loss: computes the loss from the results and a target of tokens.
        needs: a module that registers the classes of the results.
        training: whether it is exported in training mode.
        keywords: the names of the inputs that are given as keyword arguments.
    """

    model: Callable[[], nn.Module]
    inputs: Callable[[int, torch.Generator], dict[str, Tensor]]
    loss: Callable[[Any, Tensor], Tensor]
    needs: str = "torch"
    training: bool = False
    keywords: tuple[str, ...] = ()

    def prepare(self) -> None:
        """Import the module that registers the classes of the results."""
        importlib.import_module(self.needs)

    def split(self, inputs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments."""
        by_place = tuple(value for name, value in inputs.items() if name not in self.keywords)
        return by_place, {name: inputs[name] for name in self.keywords}

    def program(self) -> ExportedProgram:
        """Return the exported program, for batches of any size."""
        torch.manual_seed(0)
        inputs = self.inputs(4, torch.Generator().manual_seed(0))
        args, kwargs = self.split(inputs)
        batch = Dim("batch", min=2, max=1024)
        shapes = {name: {0: batch} for name in inputs}
        model = self.model().train(self.training)
        return export(model, args, kwargs, dynamic_shapes=shapes, strict=False)

    def batches(self, steps: int, size: int = 16) -> list[tuple[dict[str, Tensor], Tensor]]:
        """Return inputs and targets."""
        generator = torch.Generator().manual_seed(1)
        return [(self.inputs(size, generator), _tokens(size, generator)) for _ in range(steps)]


def _tokens(size: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, VOCABULARY, (size, LENGTH), generator=generator)


def _only_tokens(name: str) -> Callable[[int, torch.Generator], dict[str, Tensor]]:
    return lambda size, generator: {name: _tokens(size, generator)}


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


class Experts(nn.Module):
    """Sends each token to the two best of four experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(Expert() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        for number, expert in enumerate(self.experts):
            is_chosen = chosen == number
            share = (weights * is_chosen).sum(-1, keepdim=True)
            x = x + share * expert(x)
        return x


class Mixture(nn.Module):
    """A small mixture of experts; a stage may choose the experts that a later stage runs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Experts() for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Several(nn.Module):
    """Several inputs and results; values of many types pass between stages, and skip stages."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.drop = nn.Dropout(0.5)

    def forward(self, tokens: Tensor, shift: Tensor, *, mask: Tensor) -> dict[str, Any]:
        x = first = self.embedding(tokens)
        wanted = mask.any(-1, keepdim=True)  # bool
        order = tokens.sort(stable=True, dim=-1).indices  # int64
        for number, layer in enumerate(self.layers):
            x = self.drop(layer(x.transpose(1, 2).transpose(1, 2)).tanh())
            if number == 3:
                x = x.transpose(0, 1)  # not contiguous when it passes to the next stage
            if number == 5:
                x = x.transpose(0, 1)
        x = torch.where(wanted[..., None], x + shift[..., None], x) + first
        x = x.gather(1, order[..., None].expand(-1, -1, WIDTH))
        return {"logits": self.head(x), "more": (order, {"wanted": wanted, "tokens": tokens})}


def _several_inputs(size: int, generator: torch.Generator) -> dict[str, Tensor]:
    return {
        "tokens": _tokens(size, generator),
        "shift": torch.randn(size, LENGTH, generator=generator),
        "mask": torch.rand(size, LENGTH, generator=generator) < 0.2,
    }


class Normed(nn.Module):
    """Convolutions with batch norm, which writes buffers in training."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 3, padding=1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(4))
        self.head = nn.Conv1d(WIDTH, VOCABULARY, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + norm(layer(x)).relu()
        return self.head(x).transpose(1, 2)


@dataclasses.dataclass
class Output:
    """The result of `Half`."""

    logits: Tensor
    hidden: list[Tensor]


pytree.register_dataclass(Output, serialized_type_name="tests.support.pipeline_models.Output")


class Half(nn.Module):
    """In bfloat16, with a dataclass as result."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Tied(3)
        self.to(torch.bfloat16)

    def forward(self, tokens: Tensor) -> Output:
        hidden = [self.inner.embedding(tokens)]
        for layer in self.inner.layers:
            hidden.append(layer(hidden[-1]))
        return Output(self.inner.head(hidden[-1]), hidden[1:3])


def _transformers(name: str) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        import transformers as hf

        config: dict[str, Any] = {**small_config(4), "num_key_value_heads": 2}
        if name == "Mixtral":
            config.update(num_local_experts=4, num_experts_per_tok=2)
        made = getattr(hf, f"{name}Config")(**config)
        model: nn.Module = getattr(hf, f"{name}ForCausalLM")(made)
        return model

    return made


CASES = {
    "tied": Case(Tied, _only_tokens("tokens"), loss_of),
    "llama": Case(
        _transformers("Llama"),
        _only_tokens("input_ids"),
        lambda given, target: loss_of(given.logits, target),
        "transformers.modeling_outputs",
        keywords=("input_ids",),
    ),
    "mixture": Case(Mixture, _only_tokens("tokens"), loss_of),
    "mixtral": Case(
        _transformers("Mixtral"),
        _only_tokens("input_ids"),
        lambda given, target: loss_of(given.logits, target),
        "transformers.models.mixtral.modeling_mixtral",
        keywords=("input_ids",),
    ),
    "several": Case(
        Several,
        _several_inputs,
        lambda given, target: loss_of(given["logits"], target),
        keywords=("mask",),
    ),
    "normed": Case(Normed, _only_tokens("tokens"), loss_of, training=True),
    "half": Case(
        Half,
        _only_tokens("tokens"),
        lambda given, target: loss_of(given.logits.float(), target),
    ),
}
