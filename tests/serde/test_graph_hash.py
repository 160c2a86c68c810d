"""graph_hash is equal for programs that compute the same, and differs for others; and diff."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.fx import Node

from fxpress import UnsupportedError, diff, graph_hash
from fxpress.serialize import SerializeError
from tests.support.memory import check_no_blocks_leak
from tests.support.shuffled import shuffled

aten = torch.ops.aten


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.constant = torch.arange(4.0)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = self.linear(x) * 1.5 + self.constant
        w = y.sin().sum(-1, keepdim=True) + self.scale
        return z + w, (x - y).reshape(-1)


def small(model: nn.Module | None = None, **options: Any) -> ExportedProgram:
    args = (torch.randn(3, 4), torch.randn(3, 4))
    return export(model or Small(), args, strict=False, **options)


def node_of(program: ExportedProgram, target: Any) -> Node:
    return next(n for n in program.graph.nodes if n.target == target)


@pytest.mark.parametrize("dynamic", [False, True])
def test_names_order_and_metadata_do_not_enter(dynamic: bool) -> None:
    shapes = ({0: Dim("rows")}, {0: Dim("rows")}) if dynamic else None
    program = small(dynamic_shapes=shapes).run_decompositions()
    wanted = graph_hash(program)
    assert wanted == graph_hash(small(dynamic_shapes=shapes).run_decompositions())
    for seed in range(5):
        other = shuffled(program, seed)
        assert graph_hash(other) == wanted
        assert diff(program, other) == []


def test_names_of_symbols_and_hints_do_not_enter() -> None:
    class Other(nn.Module):
        def forward(self, a: Tensor) -> Tensor:
            return a.sin().reshape(-1)

    class Same(nn.Module):
        def forward(self, a: Tensor) -> Tensor:
            return a.sin().reshape(-1)

    programs = [
        export(model, (torch.randn(rows, 4),), dynamic_shapes=({0: Dim(name)},), strict=False)
        for model, rows, name in ((Other(), 3, "n"), (Same(), 5, "m"))
    ]
    for program in programs:
        program._guards_code = []
    assert graph_hash(programs[0]) == graph_hash(programs[1])


def change_target(p: ExportedProgram) -> None:
    node_of(p, aten.sin.default).target = aten.cos.default


def change_float(p: ExportedProgram) -> None:
    node = node_of(p, aten.mul.Tensor)
    node.args = (node.args[0], 1.25)


def change_bool(p: ExportedProgram) -> None:
    node = node_of(p, aten.sum.dim_IntList)
    node.args = (*node.args[:2], False)


def change_list(p: ExportedProgram) -> None:
    node = node_of(p, aten.reshape.default)
    node.args = (node.args[0], [12, 1])


def swap_arguments(p: ExportedProgram) -> None:
    node = node_of(p, aten.sub.Tensor)
    node.args = node.args[::-1]


def change_shape(p: ExportedProgram) -> None:
    node = node_of(p, aten.sin.default)
    node.meta["val"] = node.meta["val"].new_empty(4, 3)


def change_dtype(p: ExportedProgram) -> None:
    node = node_of(p, aten.sin.default)
    node.meta["val"] = node.meta["val"].to(torch.float64)


def change_stride(p: ExportedProgram) -> None:
    node = node_of(p, aten.sin.default)
    node.meta["val"] = node.meta["val"].t().contiguous().t()


def add_node(p: ExportedProgram) -> None:
    node = node_of(p, aten.sin.default)
    with p.graph.inserting_after(node):
        p.graph.call_function(aten.cos.default, (node,)).meta["val"] = node.meta["val"]


def swap_outputs(p: ExportedProgram) -> None:
    output = p.graph.output_node()
    output.args = (output.args[0][::-1],)
    p.graph_signature.output_specs.reverse()


def rename_parameter(p: ExportedProgram) -> None:
    for spec in p.graph_signature.input_specs:
        if spec.target == "linear.weight":
            spec.target = "linear.other"


def change_constant(p: ExportedProgram) -> None:
    p.constants["constant"] = torch.arange(4.0) + 1


def change_guard(p: ExportedProgram) -> None:
    p._guards_code = [*p._guards_code, "L['x'].size()[0] <= 9"]


CHANGES = [
    (change_target, "nodes[3].target"),
    (change_float, "nodes[1].inputs.other.as_float"),
    (change_bool, "nodes[4].inputs.keepdim.as_bool"),
    (change_list, "nodes[8].inputs.shape.as_ints"),
    (swap_arguments, "nodes[7].inputs.self.as_tensor"),
    (change_shape, "nodes[3].values[0].sizes[0].as_int"),
    (change_dtype, "nodes[3].values[0].dtype"),
    (change_stride, "nodes[3].values[0].strides[0].as_int"),
    (add_node, "nodes[4]"),
    (swap_outputs, "output_specs[0]"),
    (rename_parameter, "inputs[parameter linear.weight]"),
    (change_constant, "inputs[tensor_constant 0].known"),
    (change_guard, "guards_code"),
]


@pytest.mark.parametrize(("change", "place"), CHANGES, ids=lambda c: getattr(c, "__name__", ""))
def test_anything_that_is_computed_enters(
    change: Callable[[ExportedProgram], None], place: str
) -> None:
    program, other = small(), small()
    assert graph_hash(program) == graph_hash(other)
    change(other)
    assert graph_hash(program) != graph_hash(other)
    found = diff(program, other)
    assert place in found[0].path, found
    assert str(found[0]).startswith(found[0].path)
    assert len(diff(program, other, limit=1)) == 1
    with pytest.raises(ValueError, match="limit must be positive"):
        diff(program, other, limit=0)
    with pytest.raises(TypeError, match="integer"):
        diff(program, other, limit=2.5)  # type: ignore[arg-type]


def test_state_enters_when_it_is_asked_for() -> None:
    program, other = small(), small()
    other.state_dict["scale"] = torch.full((4,), 3.0)
    assert graph_hash(program) == graph_hash(other)
    assert graph_hash(program, include_state=True) != graph_hash(other, include_state=True)
    found = diff(program, other, include_state=True)
    assert [d.path for d in found] == ["graph_module.graph.inputs[buffer scale].known"]
    assert graph_hash(program) != graph_hash(program, include_state=True)


def exported(forward: Callable[..., Any], *args: Any) -> ExportedProgram:
    class Model(nn.Module):
        def forward(self, *args: Tensor) -> Any:
            return forward(*args)

    return export(Model(), args, strict=False)


def before(x: Tensor) -> Any:
    y = x.clone()
    z = y * 2
    y.add_(1)
    return y, z


def after(x: Tensor) -> Any:
    y = x.clone()
    y.add_(1)
    z = y * 2
    return y, z


def through_a_view(x: Tensor) -> Any:
    y = x.clone()
    y.view(-1).add_(1)
    z = y * 2
    return y, z


def one_clone(x: Tensor) -> Any:
    y = x.clone()
    return y.add_(1), y.mul_(2)


def two_clones(x: Tensor) -> Any:
    return x.clone().add_(1), x.clone().mul_(2)


def mul_first(x: Tensor) -> Any:
    y = x.clone()
    second = y.mul_(2)
    return y.add_(1), second


WRITES = [before, after, through_a_view, one_clone, two_clones, mul_first]


def test_the_order_of_writes_and_reads_enters() -> None:
    x = torch.randn(4)
    hashes = {f.__name__: graph_hash(exported(f, x)) for f in WRITES}
    assert len(set(hashes.values())) == len(WRITES), hashes
    moved = exported(before, x)
    node_of(moved, aten.add_.Tensor).append(node_of(moved, aten.mul.Tensor))
    found = diff(exported(before, x), moved)
    assert "another order of writes" in str(found[0])


def test_which_arguments_of_a_write_are_one() -> None:
    def clones(x: Tensor) -> Any:
        a, b = x.clone(), x.clone()
        torch._foreach_add_([a, b], 1)
        return a

    program, other = exported(clones, torch.zeros(4)), exported(clones, torch.zeros(4))
    node = next(n for n in other.graph.nodes if "foreach" in str(n.target))
    first = node.args[0][0]
    node.args = ([first, first], *node.args[1:])
    assert graph_hash(program) != graph_hash(other)


def test_written_values_that_may_share_storage() -> None:
    """A product reads the results of both writes, in either order."""

    def product(x: Tensor) -> Any:
        a, b = x.clone(), x.clone()
        a.add_(1)
        b.mul_(2)
        c = torch.matmul(a, b)
        c.sub_(1)
        return a, b, c

    def other_order(x: Tensor) -> Any:
        a, b = x.clone(), x.clone()
        b.mul_(2)
        a.add_(1)
        c = torch.matmul(a, b)
        c.sub_(1)
        return a, b, c

    def one_write(x: Tensor) -> Any:
        a, b = x.clone(), x.clone()
        a.add_(1)
        c = torch.matmul(a, b)
        c.sub_(1)
        return a, b, c

    x = torch.ones(2, 2)
    hashes = [graph_hash(exported(f, x)) for f in (product, other_order, one_write)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_what_a_write_leaves_in_each_argument() -> None:
    def first(x: Tensor) -> Any:
        a, b = x.clone(), x.clone()
        torch._foreach_add_([a, b], [1, 2])
        return a

    def second(x: Tensor) -> Any:
        a, b = x.clone(), x.clone()
        torch._foreach_add_([a, b], [1, 2])
        return b

    assert graph_hash(exported(first, torch.zeros(4))) != graph_hash(
        exported(second, torch.zeros(4))
    )


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_running_statistics_are_written(kind: Any) -> None:
    class Twice(nn.Module):
        def __init__(self, swapped: bool) -> None:
            super().__init__()
            self.norm = kind(3, track_running_stats=True)
            self.swapped = swapped

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            if self.swapped:
                b = self.norm(y)
                return self.norm(x), b
            a = self.norm(x)
            return a, self.norm(y)

    inputs = (torch.randn(2, 3, 4), torch.randn(2, 3, 4))
    hashes = {graph_hash(export(Twice(s).train(), inputs, strict=False)) for s in (False, True)}
    assert len(hashes) == 2


@pytest.mark.parametrize(
    "view", [lambda x: nn.functional.dropout(x, training=False), torch.atleast_2d]
)
def test_views_that_the_schema_does_not_name(view: Callable[[Tensor], Tensor]) -> None:
    def forward(x: Tensor) -> Any:
        y = x.clone()
        z = view(y)
        w = y * 2
        z.add_(1)
        return w, z

    program, other = exported(forward, torch.zeros(4)), exported(forward, torch.zeros(4))
    node_of(other, aten.add_.Tensor).append(node_of(other, aten.mul.Tensor))
    assert graph_hash(program) != graph_hash(other)


def test_outputs_of_the_graph_enter() -> None:
    program, other = small(), small()
    output = other.graph.output_node()
    output.args = (output.args[0][::-1],)
    assert graph_hash(program) != graph_hash(other)


def test_terms_of_sums_are_in_the_order_of_their_symbols_names() -> None:
    def joined(first: str, second: str) -> ExportedProgram:
        source = f"def forward(self, {first}, {second}): return torch.cat([{first}, {second}])"
        scope: dict[str, Any] = {"torch": torch}
        exec(source, scope)
        model = type("Model", (nn.Module,), {"forward": scope["forward"]})()
        shapes = ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC})
        made = export(model, (torch.randn(3), torch.randn(5)), dynamic_shapes=shapes, strict=False)
        made._guards_code = []
        for call in made.module_call_graph:
            call.signature.forward_arg_names = None
        return made

    names = ["xy", "ab", "uv", "cd", "ef", "pq", "qp", "mn"]
    assert len({graph_hash(joined(*pair)) for pair in names}) == 1


def test_texts_of_assertions_do_not_enter() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(x.item())

    program, other = (export(Model(), (torch.tensor(3),), strict=False) for _ in range(2))
    node = next(n for n in other.graph.nodes if "_assert_scalar" in str(n.target))
    node.args = (node.args[0], "another text")
    assert graph_hash(program) == graph_hash(other)


def test_reads_between_writes_may_change_places() -> None:
    def one(x: Tensor) -> Any:
        y = x.clone()
        a, b = y.sin(), y.cos()
        y.add_(1)
        return a, b, y

    def other(x: Tensor) -> Any:
        y = x.clone()
        b, a = y.cos(), y.sin()
        y.add_(1)
        return a, b, y

    x = torch.randn(4)
    assert graph_hash(exported(one, x)) == graph_hash(exported(other, x))


def test_the_order_of_random_operators_enters() -> None:
    def one(x: Tensor) -> Any:
        a = torch.rand_like(x)
        b = torch.randn_like(x)
        return a, b

    def other(x: Tensor) -> Any:
        b = torch.randn_like(x)
        a = torch.rand_like(x)
        return a, b

    x = torch.randn(4)
    assert graph_hash(exported(one, x)) != graph_hash(exported(other, x))


def test_modes_enter() -> None:
    def one(x: Tensor) -> Any:
        with torch.no_grad():
            a = x.sin()
        return a, x.cos()

    def other(x: Tensor) -> Any:
        with torch.no_grad():
            a = x.sin()
            b = x.cos()
        return a, b

    x = torch.randn(4, requires_grad=True)
    assert graph_hash(exported(one, x)) != graph_hash(exported(other, x))


def test_graphs_in_arguments_enter_without_their_names() -> None:
    def branches(first: Any, second: Any) -> ExportedProgram:
        def forward(x: Tensor) -> Any:
            return torch.cond(x.sum() > 0, first, second, (x,))

        return exported(forward, torch.randn(4))

    def sin(x: Tensor) -> Tensor:
        return x.sin() + 1

    def cos(x: Tensor) -> Tensor:
        return x.cos() + 1

    def wave(u: Tensor) -> Tensor:
        v = u.sin()
        return v + 1

    assert graph_hash(branches(sin, cos)) == graph_hash(branches(wave, cos))
    assert graph_hash(branches(sin, cos)) != graph_hash(branches(cos, sin))
    found = diff(branches(sin, cos), branches(cos, cos))
    assert "as_graph.nodes[0].target" in found[0].path


def test_constants_of_all_kinds() -> None:
    class Holds(nn.Module):
        def __init__(self, value: Tensor) -> None:
            super().__init__()
            self.value = value

        def forward(self, x: Tensor) -> Tensor:
            return x + self.value.dequantize() if self.value.is_quantized else x + self.value

    def values() -> list[Tensor]:
        return [
            torch.tensor(1),
            torch.tensor(2),
            torch.tensor(1.0),
            torch.tensor(float("nan")),
            torch.ones(4)[:0].sum(),
            torch.ones(4),
            torch.ones(4, dtype=torch.bfloat16),
            torch.arange(8.0)[::2],
            torch.arange(4.0) * 2 + 1,
            torch.ones(4, dtype=torch.complex64).conj(),
        ]

    x = torch.randn(4)
    hashes = [graph_hash(export(Holds(value), (x,), strict=False)) for value in values()]
    assert len(set(hashes)) == len(hashes)
    again = [graph_hash(export(Holds(value), (x,), strict=False)) for value in values()]
    assert hashes == again


def test_constants_that_are_not_plain() -> None:
    def tensors() -> list[Any]:
        scales = torch.tensor([0.1, 0.100001, 0.2])
        zeros = torch.zeros(3, dtype=torch.int64)
        return [
            torch.eye(4).to_sparse(),
            torch.eye(4).mul(2).to_sparse(),
            torch.eye(4).to_sparse_csr(),
            torch.eye(4).to_sparse_csc(),
            torch.empty(4, device="meta"),
            torch.quantize_per_tensor(torch.ones(4, 3), 0.1, 0, torch.qint8),
            torch.quantize_per_tensor(torch.ones(4, 3), 0.1000001, 0, torch.qint8),
            torch.quantize_per_channel(torch.ones(4, 3), scales, zeros, 1, torch.qint8),
            torch.quantize_per_channel(torch.ones(4, 3), scales.flip(0), zeros, 1, torch.qint8),
            {"a": [1, 2.0, "b", None]},
            {"a": [1, 2.0, b"b", None]},
        ]

    def digests() -> list[str]:
        program = small()
        found = []
        for value in tensors():
            program.constants["constant"] = value
            found.append(graph_hash(program))
        return found

    assert digests() == digests()
    assert len(set(digests())) == len(tensors())


def test_constants_that_cannot_be_hashed() -> None:
    program = small()
    for value in (object(), {1, 2}, torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])):
        program.constants["other"] = value
        with pytest.raises(UnsupportedError, match="the constant other cannot be hashed"):
            graph_hash(program)


def test_nodes_that_cannot_be_written() -> None:
    program = small()
    node = node_of(program, aten.sin.default)
    node.args = (object(),)
    with pytest.raises(SerializeError, match="sin"):
        graph_hash(program)


def test_graphs_in_no_order() -> None:
    program = small()
    sin = node_of(program, aten.sin.default)
    program.graph.output_node().prepend(sin)
    with pytest.raises(AssertionError, match="the graph does not have a value named sin"):
        graph_hash(program)


def test_nodes_of_another_graph() -> None:
    program = small()
    other = torch.fx.Graph().placeholder("other")
    node_of(program, aten.sin.default).args = (other,)
    with pytest.raises(SerializeError, match="other is not in the graph"):
        graph_hash(program)


def test_signatures_of_another_length() -> None:
    program = small()
    program.graph_signature.input_specs.pop()
    with pytest.raises(AssertionError, match=r"the signature has \d inputs, but the graph has \d"):
        graph_hash(program)


@pytest.mark.slow("imports torch in separate processes")
def test_other_processes_and_threads_get_the_same() -> None:
    program = small()
    wanted = graph_hash(program)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: graph_hash(program), range(16))) == {wanted}
    script = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from tests.serde.test_graph_hash import graph_hash, small\n"
        "print(graph_hash(small()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    assert run.stdout.split() == [wanted]


def test_nothing_is_left_behind() -> None:
    program, broken = small(), small()
    node_of(broken, aten.sin.default).args = (object(),)

    def hash_both() -> None:
        graph_hash(program)
        with pytest.raises(SerializeError):
            graph_hash(broken)

    check_no_blocks_leak(hash_both, 200)


def test_sizes_among_arguments_that_differ() -> None:
    def rows(x: Tensor) -> Tensor:
        return torch.zeros(x.shape[0], x.shape[1])

    def columns(x: Tensor) -> Tensor:
        return torch.zeros(x.shape[1], x.shape[0])

    class Made(nn.Module):
        def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
            super().__init__()
            self.function = function

        def forward(self, x: Tensor) -> Tensor:
            return self.function(x)

    sizes = ({0: Dim("rows"), 1: Dim("columns")},)
    first, second = (
        export(Made(each), (torch.zeros(3, 5),), dynamic_shapes=sizes) for each in (rows, columns)
    )
    assert graph_hash(first) != graph_hash(second)
    assert diff(first, second)
    assert diff(first, first) == []
