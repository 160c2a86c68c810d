"""The state of an unflattened module, and what a user does with one: train, move, hook, swap."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import export

from fxpress._torch.aten import clone_separately
from fxpress.unflatten import unflatten
from tests.support.unflatten_cases import both, exported, ours_of, quietly
from tests.support.unflatten_compare import (
    assert_runs_as_eager,
    assert_same_outputs,
    assert_untouched,
    snapshot,
)
from tests.support.unflatten_models import Deep, Nest, Repeated, RootState, Shared, Unused


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def args() -> tuple[Tensor, ...]:
    return torch.randn(3, 4), torch.randn(3, 4)


# ---- weights ------------------------------------------------------------------------------------


def test_shared_weights_stay_shared() -> None:
    model, x = Shared(), torch.randn(2, 4)
    ours = ours_of(copy.deepcopy(model), x)
    assert ours.a.weight is ours.b.weight is ours.c.weight
    assert ours.c.bias is not ours.a.bias
    assert len(list(ours.parameters())) == len(list(model.parameters()))
    assert_runs_as_eager(ours, model, (x,), gradients=True)
    with torch.no_grad():
        ours.a.weight.fill_(0.25)
        model.a.weight.fill_(0.25)
    assert_runs_as_eager(ours, model, (x,))


def test_the_program_does_not_share_its_weights() -> None:
    model, inputs = Nest(), args()
    program = exported(model, *inputs)
    ours = quietly(program)
    before = snapshot(program)
    with torch.no_grad():
        for tensor in ours.state_dict().values():
            tensor.fill_(0.5)
    assert_untouched(program, before)


@pytest.mark.parametrize("build", [Nest, Deep, Shared, RootState, Unused], ids=lambda b: b.__name__)
def test_state_dict_round_trip(build: type[nn.Module]) -> None:
    """Both ways between the eager module and ours."""
    model, other = build(), build()
    inputs = args()[: 2 if build in (Nest, Unused) else 1]
    ours = ours_of(copy.deepcopy(model), *inputs)
    state = model.state_dict()
    assert list(ours.state_dict()) == list(state)
    with torch.no_grad():
        for tensor in state.values():
            tensor.mul_(1.5)
    assert ours.load_state_dict(state, strict=True).missing_keys == []
    assert_runs_as_eager(ours, model, inputs)
    other.load_state_dict(ours.state_dict(), strict=True)
    assert_runs_as_eager(ours, other, inputs)
    assigned = {name: tensor.clone() for name, tensor in state.items()}
    ours.load_state_dict(assigned, strict=True, assign=True)
    assert_runs_as_eager(ours, model, inputs)


def test_requires_grad() -> None:
    model, inputs = Nest(), args()
    model.first.leaf.weight.requires_grad_(False)
    ours = ours_of(copy.deepcopy(model), *inputs)
    wanted = {name: p.requires_grad for name, p in model.named_parameters()}
    assert {name: p.requires_grad for name, p in ours.named_parameters()} == wanted
    assert_runs_as_eager(ours, model, inputs, gradients=True)
    ours.requires_grad_(False)
    assert not ours(*inputs).requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_to(dtype: torch.dtype) -> None:
    model, inputs = Nest(), args()
    ours = ours_of(copy.deepcopy(model), *inputs)
    ours(*inputs)
    assert ours.to(dtype) is ours
    model.to(dtype)
    cast = tuple(x.to(dtype) for x in inputs)
    assert ours(*cast).dtype == dtype
    assert_runs_as_eager(ours, model, cast, gradients=True)


def test_meta_device() -> None:
    ours = ours_of(Nest(), *args())
    ours.to("meta")
    assert ours(*(x.to("meta") for x in args())).device.type == "meta"


def test_parameters_may_be_replaced() -> None:
    """Attributes are read at each call."""
    model, inputs = Nest(), args()
    ours = ours_of(copy.deepcopy(model), *inputs)
    ours(*inputs)
    for module in (ours, model):
        module.norm.weight = nn.Parameter(torch.full((4,), 3.0))
        module.first.leaf.shift = torch.full((4,), 2.0)
    assert_runs_as_eager(ours, model, inputs, gradients=True)
    swapped = {name: p * 2 for name, p in ours.named_parameters()}
    torch.testing.assert_close(
        torch.func.functional_call(ours, swapped, inputs),
        torch.func.functional_call(model, swapped, inputs),
    )
    torch.nn.utils.parametrizations.weight_norm(ours.first.linear)
    torch.nn.utils.parametrizations.weight_norm(model.first.linear)
    assert_runs_as_eager(ours, model, inputs)


class Lenses(nn.Module):
    """One storage seen as it is and conjugated, or as it is and negated."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        values = torch.randn(4, dtype=torch.complex64)
        seen = (values, values.conj()) if kind == "conj" else (values.imag, values.conj().imag)
        self.register_buffer("a", seen[0])
        self.register_buffer("b", seen[1])

    def forward(self, x: Tensor) -> Tensor:
        return self.a * x + 2 * self.b  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["conj", "neg"])
def test_views_that_are_conjugated_or_negated_are_other_data(kind: str) -> None:
    # torch takes them for one and the same: its unflattened module gives other numbers.
    model, x = Lenses(kind), torch.ones(4)
    program = exported(model, x)
    expected = program.module()(x)
    torch.testing.assert_close(expected, model(x), rtol=0, atol=0)
    torch.testing.assert_close(quietly(program)(x), expected, rtol=0, atol=0)
    assert not torch.allclose(both(model, x).theirs(x), expected)


# ---- share_state, device ------------------------------------------------------------------------


@pytest.mark.parametrize("build", [Nest, Shared, Deep, Unused], ids=lambda b: b.__name__)
def test_share_state_copies_nothing(build: type[nn.Module]) -> None:
    model = build()
    inputs = args()[: 2 if build in (Nest, Unused) else 1]
    program = exported(model, *inputs)
    ours = quietly(program, share_state=True)
    for name, tensor in ours.state_dict(keep_vars=True).items():
        source = program.state_dict[name]
        assert tensor.data_ptr() == source.data_ptr(), name
        assert tensor.requires_grad == source.requires_grad
        assert isinstance(tensor, nn.Parameter) == isinstance(source, nn.Parameter)
    assert_runs_as_eager(ours, copy.deepcopy(model), inputs, gradients=True)
    with torch.no_grad():
        for tensor in program.state_dict.values():
            tensor.fill_(0.5)
    eager = build()
    eager.load_state_dict(program.state_dict)
    assert_runs_as_eager(ours, eager, inputs)


def test_share_state_with_constants_and_mutated_buffers() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.constant = torch.arange(4.0)
            self.register_buffer("total", torch.zeros(4))
            self.register_buffer("scratch", torch.ones(4), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.total.add_(x)
            return self.total * self.constant + self.scratch

    model, x = Model(), torch.ones(4)
    program = exported(model, x)
    ours = quietly(program, share_state=True)
    assert ours.total is program.state_dict["total"]
    assert ours.constant is program.constants["constant"]
    assert ours.scratch is program.constants["scratch"]
    ours(x)
    torch.testing.assert_close(program.state_dict["total"], torch.ones(4))


def test_device() -> None:
    model, inputs = Nest(), args()
    program = exported(model, *inputs)
    ours = quietly(program, device="cpu")
    assert_runs_as_eager(ours, model, inputs)
    empty = quietly(program, device=torch.device("meta"))
    assert {t.device.type for t in empty.state_dict().values()} == {"meta"}
    assert {t.device.type for t in program.state_dict.values()} == {"cpu"}
    assert list(empty.state_dict()) == list(ours.state_dict())
    shared = quietly(exported(Shared(), torch.randn(2, 4)), device="meta")
    assert shared.a.weight is shared.c.weight


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_device_gpu() -> None:
    """State lands on the GPU; a program without device arguments runs there."""
    model, inputs = Nest(), args()
    ours = quietly(exported(model, *inputs), device="cuda")
    assert {t.device.type for t in ours.state_dict().values()} == {"cuda"}
    got = ours(*(x.cuda() for x in inputs))
    torch.testing.assert_close(got.cpu(), model(*inputs), rtol=1e-4, atol=1e-4)


# ---- training -----------------------------------------------------------------------------------


def test_training_step_by_step() -> None:
    model, inputs = Nest(), args()
    ours = ours_of(copy.deepcopy(model), *inputs)
    modules = (ours, model)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.05) for m in modules]
    losses: list[list[float]] = [[], []]
    for _ in range(5):
        for module, optimizer, seen in zip(modules, optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss = module(*inputs).square().sum()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
    torch.testing.assert_close(losses[0], losses[1])
    assert losses[0][-1] < losses[0][0]


class Trains(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_and_dropout(training: bool) -> None:
    model, x = Trains().train(training), torch.randn(6, 4)
    ours = ours_of(copy.deepcopy(model), x)
    assert_runs_as_eager(ours, model, (x,), gradients=True, calls=3)
    assert ours.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("name", ["train", "eval"])
def test_train_and_eval_where_nothing_depends_on_it(name: str) -> None:
    model, inputs = Nest(), args()
    ours = ours_of(model, *inputs)
    assert getattr(ours, name)() is ours
    assert ours.training == (name == "train")
    assert all(m.training == ours.training for m in ours.modules())
    assert_runs_as_eager(ours, model, inputs)


def test_train_and_eval_where_the_graph_is_fixed() -> None:
    """Dropout was exported in one mode: the other one is refused or given, never ignored."""
    x = torch.randn(6, 4)
    for exported_in in (True, False):
        model = Trains().train(exported_in)
        ours = ours_of(copy.deepcopy(model), x)
        ours.train(exported_in)
        assert_runs_as_eager(ours, model, (x,))
        try:
            ours.train(not exported_in)
        except Exception as error:
            assert isinstance(error, (NotImplementedError, RuntimeError))  # noqa: PT017
            assert "block" in str(error)  # noqa: PT017
        else:
            assert_runs_as_eager(ours, copy.deepcopy(model).train(not exported_in), (x,), calls=1)


def test_grad_modes() -> None:
    model, inputs = Nest(), args()
    ours = ours_of(model, *inputs)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            assert_same_outputs(ours(*inputs), model(*inputs), exact=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same_outputs(ours(*inputs), model(*inputs), exact=True)


def test_gradients_of_gradients() -> None:
    model, inputs = Nest(), args()
    ours = ours_of(model, *inputs)
    results = []
    for module in (ours, model):
        x = inputs[0].clone().requires_grad_()
        (first,) = torch.autograd.grad(module(x, inputs[1]).pow(3).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(first.sum(), x)[0])
    torch.testing.assert_close(*results)


def test_vmap_and_jacobian() -> None:
    model, (x, y) = Nest(), args()
    ours = ours_of(model, x, y)
    batch = torch.randn(5, 3, 4)
    ours.check_input_constraints = False
    for transform in (
        lambda m: torch.vmap(lambda b: m(b, y))(batch),
        lambda m: torch.func.jacrev(lambda v: m(v, y))(x),
        lambda m: torch.func.jvp(lambda v: m(v, y), (x,), (y,))[1],
    ):
        torch.testing.assert_close(transform(ours), transform(model))


# ---- hooks --------------------------------------------------------------------------------------


def with_hooks(root: Any, name: str, inputs: tuple[Tensor, ...]) -> list[str]:
    """The arguments of hooks of every type on a module in one run, forward and backward."""
    module = root.get_submodule(name)
    seen: list[str] = []
    handles = [
        module.register_forward_pre_hook(lambda m, a: seen.append(f"before {len(a)}")),
        module.register_forward_hook(lambda m, a, out: seen.append(f"after {type(out)}")),
        module.register_full_backward_hook(lambda m, gi, go: seen.append(f"backward {len(go)}")),
        module.register_full_backward_pre_hook(lambda m, go: seen.append("before backward")),
    ]
    root(*inputs).sum().backward()
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.filterwarnings("ignore:(Full backward hook is firing|For backward hooks to be called)")
@pytest.mark.parametrize("name", ["", "first", "first.leaf", "second.linear", "norm"])
def test_hooks_on_any_module(name: str) -> None:
    inputs = args()
    result = both(Nest(), *inputs)
    ours = result.ours
    plain = ours(*inputs)
    seen = with_hooks(ours, name, inputs)
    assert seen == with_hooks(result.theirs, name, inputs)
    assert len(seen) >= 2
    torch.testing.assert_close(ours(*inputs), plain, rtol=0, atol=0)
    assert with_hooks(ours, name, inputs) == seen
    handle = ours.get_submodule(name).register_forward_hook(
        lambda m, a, out: torch.utils._pytree.tree_map(torch.zeros_like, out)
    )
    assert not torch.equal(ours(*inputs), plain)
    handle.remove()
    torch.testing.assert_close(ours(*inputs), plain, rtol=0, atol=0)


def test_hooks_of_a_repeated_module_see_every_call() -> None:
    x = torch.randn(2, 4)
    for preserved in ((), ("inner",)):
        ours = ours_of(Repeated(nn.Linear(4, 4)), x, preserve_module_call_signature=preserved)
        calls: list[torch.Size] = []
        ours.inner.register_forward_hook(lambda m, a, out, calls=calls: calls.append(out.shape))
        ours(x)
        assert calls == [torch.Size([2, 4])] * 3


def test_global_hooks() -> None:
    ours = ours_of(Nest(), *args())
    called: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, a, out: called.append(type(m).__name__)
    )
    with handle:
        ours(*args())
    assert called == ["InterpreterModule"] * 7 + ["UnflattenedModule"]
    ours(*args())
    assert len(called) == 8


# ---- swapping -----------------------------------------------------------------------------------


def test_swap_a_preserved_submodule() -> None:
    model, inputs = Nest(), args()
    ours = ours_of(
        copy.deepcopy(model), *inputs, preserve_module_call_signature=("first", "second.leaf")
    )
    ours(*inputs)
    ours.first = model.first
    ours.second.leaf = model.second.leaf
    assert_runs_as_eager(ours, model, inputs, gradients=False)
    ours.first = model.second
    model.first = model.second
    assert_runs_as_eager(ours, model, inputs)


def test_swap_in_torch_swap() -> None:
    from torch.export._swap import _swap_modules

    import fxpress

    model, inputs = Nest(), args()
    program = exported(copy.deepcopy(model), *inputs, preserve_module_call_signature=("first",))
    expected = _swap_modules(program, {"first": model.first})
    with fxpress.installed():
        swapped = _swap_modules(program, {"first": model.first})
    assert swapped.code == expected.code
    torch.testing.assert_close(swapped(*inputs), expected(*inputs))


def test_methods_replaced_on_an_instance() -> None:
    model, inputs = Nest(), args()
    ours = ours_of(model, *inputs)
    plain = ours(*inputs)
    original = ours.norm.forward
    ours.norm.forward = lambda *a, **k: original(*a, **k) * 2
    torch.testing.assert_close(ours(*inputs), plain * 2)
    del ours.norm.forward
    torch.testing.assert_close(ours(*inputs), plain)


def test_edits_of_a_graph_act_at_the_next_call() -> None:
    model, inputs = Nest(), args()
    ours = ours_of(model, *inputs)
    plain = ours(*inputs)
    output = ours.graph.output_node()
    (value,) = output.args[0]
    with ours.graph.inserting_before(output):
        doubled = ours.graph.call_function(torch.ops.aten.mul.Tensor, (value, 2))
    output.args = ((doubled,),)
    torch.testing.assert_close(ours(*inputs), plain * 2)
    (node,) = [n for n in ours.norm.graph.nodes if n.op == "call_function"]
    node.update_arg(4, 1.0)
    assert not torch.allclose(ours(*inputs), plain * 2)


def test_submodules_run_alone() -> None:
    model, (x, y) = Nest(), args()
    ours = ours_of(model, x, y)
    torch.testing.assert_close(ours.norm(x), model.norm(x))
    torch.testing.assert_close(ours.first.linear(x), model.first.linear(x))
    assert ours.norm.arg_names == [n.target for n in ours.norm.graph.find_nodes(op="placeholder")]
    torch.testing.assert_close(ours.norm(**{ours.norm.arg_names[0]: x}), model.norm(x))
    with pytest.raises(AssertionError):
        ours.norm(x, **{ours.norm.arg_names[0]: x})
    with pytest.raises(AssertionError):
        ours.norm(no_such_argument=x)


def test_keyword_arguments_in_another_order() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, *, a: Tensor, b: Tensor) -> Tensor:
            return x + a - b

    x, a, b = torch.randn(3, 2).unbind()
    program = export(Model(), (x,), {"a": a, "b": b}, strict=False)
    ours = unflatten(program)
    torch.testing.assert_close(ours(x, b=b, a=a), x + a - b)
    torch.testing.assert_close(ours(x, a=a, b=b), x + a - b)


def test_a_module_list_can_be_walked() -> None:
    model, x = RootState(), torch.randn(2, 4)
    ours = ours_of(model, x)
    assert [n for n, _ in ours.layers.named_children()] == ["0", "1", "2"]
    names: list[Any] = [n for n, _ in ours.named_modules()]
    assert names == [n for n, _ in model.named_modules()]


def test_copies_that_are_separate() -> None:
    """Separate storages, with the strides that clone() keeps."""
    base = torch.arange(24.0).reshape(4, 6)
    parameter = torch.nn.Parameter(torch.rand(3), requires_grad=False)
    simple = [base[1], base.t(), base, parameter, base[1:3].contiguous(), torch.tensor(3)]
    copies = clone_separately(simple, [False] * 3 + [True] + [False] * 2)
    for copied, original in zip(copies, simple, strict=True):
        assert type(copied) is type(original)
        assert torch.equal(copied, original)
        assert copied.stride() == original.clone().stride()
        assert copied.storage_offset() == 0
        assert copied.untyped_storage().nbytes() == original.numel() * original.element_size()
        assert copied.requires_grad == original.requires_grad
    assert len({copied.untyped_storage().data_ptr() for copied in copies}) == len(copies)
    (made,) = clone_separately([base[1]], [True])
    assert type(made) is torch.nn.Parameter
    assert made.is_leaf

    left = [
        base[:, ::2],
        torch.empty(0, 3),
        torch.rand(2).requires_grad_(),
        torch.rand(2, dtype=torch.complex64).conj(),
        torch.rand(2).to_sparse(),
        "text",
        torch.rand(2).expand(3, 2),
    ]
    assert clone_separately(left, [False] * len(left)) == [None] * len(left)
    with pytest.raises(ValueError, match="flag"):
        clone_separately(left, [True])
    shrunk = torch.rand(4)
    shrunk.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="larger than its storage"):
        clone_separately([shrunk], [False])
