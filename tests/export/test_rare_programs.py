"""module() of programs that few users have: tokens, objects, taken names, contradictions."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.export.graph_signature import (
    CustomObjArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import GraphModule

from fxpress.export import module
from fxpress.unflatten import unflatten
from tests.support.opaque import handle_of_a_custom_class
from tests.support.unflatten_compare import assert_untouched, snapshot
from tests.support.unflatten_models import Nest, Repeated, Special
from tests.support.unlifted import (
    assert_module_as_torch,
    assert_same_class,
    assert_same_guards,
    assert_same_hooks,
    notes,
    ours_of,
    torchs,
)

pytestmark = pytest.mark.slow("exports and decompositions")

aten = torch.ops.aten
X = torch.linspace(-1.0, 1.0, 12).view(3, 4)


def assert_as_torch_of_a_copy(program: ExportedProgram) -> GraphModule:
    """torch changes the bodies of such a program: it gets a copy. Ours leaves them as they are."""
    theirs = torchs(copy.deepcopy(program))
    before = snapshot(program)
    ours = ours_of(program)
    assert_untouched(program, before)
    assert_same_class(type(ours), type(theirs))
    assert ours.code == theirs.code
    mine, other = list(ours.graph.nodes), list(theirs.graph.nodes)
    assert [(n.name, n.op, n.target) for n in mine] == [(n.name, n.op, n.target) for n in other]
    assert [list(n.meta) for n in mine] == [list(n.meta) for n in other]
    for a, b in zip(mine, other, strict=True):
        own, others = (said_of(n) for n in (a, b))
        assert own == others, a
    children = [dict(m.named_children()) for m in (ours, theirs)]
    assert list(children[0]) == list(children[1])
    for name, child in children[1].items():
        if isinstance(child, GraphModule):
            assert children[0][name].code == child.code, name
    assert_same_hooks(ours, theirs)
    assert_same_guards(ours, theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert ours.meta.keys() == theirs.meta.keys()
    return ours


def said_of(node: torch.fx.Node) -> Any:
    """The text of a node's metadata, without the graphs' ids."""

    def without_ids(note: Any) -> Any:
        pass_name, action, said, earlier = note
        return pass_name, action, said and said[:2], [without_ids(each) for each in earlier]

    return [without_ids(note) for note in notes(node.meta.get("from_node", []), node.graph)]


# ---- tokens and dead code -----------------------------------------------------------------------


class Prints(nn.Module):
    """An operator with a side effect: the decomposed program passes a token through it."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(4, 4)
        self.register_buffer("with_effects", torch.ones(4), persistent=False)
        self.register_buffer("getitem", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        aten._print("before")
        x = self.child(x) * self.with_effects
        self.getitem.add_(1)
        aten._print("after")
        return x


class PrintsBesideBodies(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        aten._print("before")
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


@pytest.mark.parametrize("build", [Prints, PrintsBesideBodies])
def test_effect_tokens(build: type[nn.Module], capfd: pytest.CaptureFixture[str]) -> None:
    program = export(build(), (X,), strict=False).run_decompositions({})
    assert any("with_effects" in str(n.target) for n in program.graph.nodes)
    ours = assert_as_torch_of_a_copy(program)
    capfd.readouterr()
    ours(X)
    assert capfd.readouterr().out.startswith("before\n")


def test_effect_tokens_of_exported_programs_stay() -> None:
    assert_module_as_torch(export(Prints(), (X,), strict=False))


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def with_dead_body(*, decomposed: bool) -> ExportedProgram:
    program = export(Branches(), (X,), strict=False)
    if decomposed:
        program = program.run_decompositions({})
    body = next(m for m in program.graph_module.children() if isinstance(m, GraphModule))
    node = body.graph.find_nodes(op="placeholder")[0]
    with body.graph.inserting_after(node):
        body.graph.call_function(aten.cos.default, (node,)).meta.update(node.meta)
    return program


def test_dead_code_of_bodies_of_decomposed_programs() -> None:
    """torch erases it in the program's own bodies; the program stays as it is here."""
    program = with_dead_body(decomposed=True)
    body = next(iter(program.graph_module.children()))
    count = len(body.graph.nodes)
    torch_program = copy.deepcopy(program)
    torchs(torch_program)
    assert len(next(iter(torch_program.graph_module.children())).graph.nodes) < count
    body.recompile()
    assert_as_torch_of_a_copy(program)
    assert len(body.graph.nodes) == count


def test_dead_code_that_only_dead_code_uses() -> None:
    program = export(nn.Linear(4, 4), (X,), strict=False).run_decompositions({})
    graph, x = program.graph, program.graph.find_nodes(op="placeholder")[-1]
    with graph.inserting_before(x.next):
        dead = graph.call_function(aten.sin.default, (x,))
        user = graph.call_function(aten.cos.default, (dead,))
    for node in (dead, user):
        node.meta.update(x.meta)
    assert_module_as_torch(program, (X,))


def test_bodies_that_were_edited_get_fresh_code() -> None:
    program = with_dead_body(decomposed=False)
    ours = ours_of(program)
    body = next(m for m in ours.children() if isinstance(m, GraphModule))
    assert "aten.cos" in body.code
    assert body is next(iter(program.graph_module.children()))


# ---- objects ------------------------------------------------------------------------------------


def with_constant(held: Any, name: str, argument: CustomObjArgument) -> ExportedProgram:
    """A program with an object as a constant, which an operator of the graph would take."""
    program = export(nn.Linear(4, 4), (X,), strict=False)
    graph = program.graph
    with graph.inserting_before(next(iter(graph.nodes))):
        node = graph.placeholder("held")
    node.meta["val"] = argument
    spec = InputSpec(InputKind.CUSTOM_OBJ, argument, name)
    program.graph_signature.input_specs.insert(0, spec)
    program.constants[name] = held
    return program


@pytest.mark.parametrize("name", ["held", "inner.held"])
def test_script_objects(name: str) -> None:
    weight = torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, None)
    argument = CustomObjArgument("held", packed._type().qualified_name(), None)
    program = with_constant(packed, name, argument)
    ours = assert_module_as_torch(program, (X,))
    found: Any = ours
    for part in name.split("."):
        found = getattr(found, part)
    assert found is packed


def test_opaque_objects() -> None:
    held = handle_of_a_custom_class()
    program = with_constant(held, "held", CustomObjArgument("held", "Handle", None))
    ours, theirs = ours_of(program), torchs(program)
    assert ours.held is theirs.held is held
    assert ours.code == theirs.code
    assert list(vars(ours)) == list(vars(theirs))


def test_other_objects_are_refused() -> None:
    program = with_constant(object(), "held", CustomObjArgument("held", "object", None))
    assert_fails_as_torch(program, AssertionError)


# ---- names --------------------------------------------------------------------------------------


def test_state_of_several_calls_of_a_module() -> None:
    """Names such as `inner@1.weight`, which unflattened modules have."""
    torch.manual_seed(0)
    program = export(Special(), (X,), strict=False, preserve_module_call_signature=("inner",))
    again = export(unflatten(program), (X,), strict=False)
    assert_module_as_torch(again, (X,))
    again = export(unflatten(export(Repeated(nn.Linear(4, 4)), (X,))), (X,), strict=False)
    assert_module_as_torch(again, (X,))


class BodyNamedAsAModule(nn.Module):
    """The body of an operator gets the name of a module that has state."""

    def __init__(self) -> None:
        super().__init__()
        self.submod_1 = nn.Linear(4, 4)
        self.true_graph_0 = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.true_graph_0(self.submod_1(x))
        with torch.no_grad():
            x = x.sin()
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


@pytest.mark.parametrize("strict", [False, True])
def test_bodies_with_the_name_of_a_module_with_state(strict: bool) -> None:
    torch.manual_seed(0)
    program = export(BodyNamedAsAModule(), (X,), strict=strict)
    theirs = torchs(copy.deepcopy(program))
    before = snapshot(program)
    ours = ours_of(program)
    assert_untouched(program, before)
    assert ours.code == theirs.code
    assert list(ours.state_dict()) == list(theirs.state_dict())
    torch.testing.assert_close(ours(X), theirs(X), rtol=0, atol=0)


TAKEN = {
    "meta": KeyError,
    "_graph": KeyError,
    "forward": KeyError,
    "code": KeyError,
    "_wrapped_call": KeyError,
    "": KeyError,
    "validate_inputs": TypeError,
    "range_constraints": TypeError,
    "_in_spec": TypeError,
}


@pytest.mark.parametrize("name", TAKEN)
def test_state_with_the_name_of_an_attribute_of_the_module(name: str) -> None:
    program = export(nn.Linear(4, 4), (X,), strict=False)
    rename_state(program, "bias", name)
    assert_fails_as_torch(program, TAKEN[name])


@pytest.mark.parametrize("name", ["true_graph_0", "meta"])
def test_buffers_and_constants_with_taken_names(name: str) -> None:
    program = export(BufferBesideABranch(), (X,), strict=False)
    rename_state(program, "buffer", name)
    assert_fails_as_torch(program, KeyError)
    program = export(BufferBesideABranch(), (X,), strict=False)
    program.constants[name] = program.constants.pop("constant")
    for spec in program.graph_signature.input_specs:
        if spec.target == "constant":
            spec.target = name
    theirs = outcome(lambda: torchs(copy.deepcopy(program)))
    ours = outcome(lambda: ours_of(program))
    assert isinstance(ours, type(theirs)) or ours.code == theirs.code


class BufferBesideABranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buffer", torch.ones(4))
        self.constant = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.buffer * self.constant
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def rename_state(program: ExportedProgram, old: str, new: str) -> None:
    program.state_dict[new] = program.state_dict.pop(old)
    for spec in program.graph_signature.input_specs:
        if spec.target == old:
            spec.target = new


# ---- contradictions -----------------------------------------------------------------------------


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return error


def assert_fails_as_torch(program: ExportedProgram, kind: type[Exception]) -> None:
    before = snapshot(program)
    ours = outcome(lambda: module(program))
    assert_untouched(program, before)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = outcome(program.module)
    assert isinstance(theirs, kind), repr(theirs)
    assert isinstance(ours, type(theirs)), (ours, theirs)


def nest() -> ExportedProgram:
    torch.manual_seed(0)
    return export(Nest(), (X, X), strict=False)


def lacks_state(program: ExportedProgram) -> None:
    program.state_dict.pop("norm.bias")


def has_no_parameter(program: ExportedProgram) -> None:
    program.state_dict["norm.bias"] = torch.ones(4)


def has_no_tensor(program: ExportedProgram) -> None:
    program.state_dict["first.leaf.shift"] = "text"


def has_fewer_inputs(program: ExportedProgram) -> None:
    program.graph_signature.input_specs.pop()


def has_more_outputs(program: ExportedProgram) -> None:
    spec = OutputSpec(OutputKind.USER_OUTPUT, TensorArgument("x"), None)
    program.graph_signature.output_specs.append(spec)


def writes_to_nothing(program: ExportedProgram) -> None:
    program.graph_signature.output_specs[0].kind = OutputKind.BUFFER_MUTATION
    program.graph_signature.output_specs[0].target = "nowhere"


def has_another_example(program: ExportedProgram) -> None:
    program._example_inputs = ((X, X, X), {})


def has_an_input_without_value(program: ExportedProgram) -> None:
    program.graph.find_nodes(op="placeholder")[-1].meta.pop("val")


def has_an_odd_parameter(program: ExportedProgram) -> None:
    program.module_call_graph[0].signature.forward_arg_names = ["x", "not a name"]


def has_a_keyword_as_parameter(program: ExportedProgram) -> None:
    program.module_call_graph[0].signature.forward_arg_names = ["x", "lambda"]


def has_one_parameter_twice(program: ExportedProgram) -> None:
    program.module_call_graph[0].signature.forward_arg_names = ["x", "x"]


def has_no_signature(program: ExportedProgram) -> None:
    program.module_call_graph[0].signature = None


def names_no_attribute(program: ExportedProgram) -> None:
    graph = program.graph
    with graph.inserting_before(graph.output_node()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph.get_attr("nowhere")


def is_out_of_order(program: ExportedProgram) -> None:
    first = next(node for node in program.graph.nodes if node.op == "call_function")
    program.graph.output_node().prepend(first)


@pytest.mark.parametrize(
    ("edit", "kind"),
    [
        (lacks_state, KeyError),
        (has_no_parameter, AssertionError),
        (has_no_tensor, AssertionError),
        (has_fewer_inputs, AssertionError),
        (has_more_outputs, AssertionError),
        (writes_to_nothing, RuntimeError),
        (has_another_example, TypeError),
        (has_an_input_without_value, KeyError),
        (has_an_odd_parameter, SyntaxError),
        (has_a_keyword_as_parameter, SyntaxError),
        (has_one_parameter_twice, SyntaxError),
        (has_no_signature, Exception),
        (names_no_attribute, AttributeError),
        (is_out_of_order, KeyError),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_contradictions(edit: Callable[[ExportedProgram], None], kind: type[Exception]) -> None:
    program = nest()
    edit(program)
    assert_fails_as_torch(program, kind)


class ConstantWithGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.constant = torch.ones(4, requires_grad=True)
        self.inner.same = self.constant
        self.inner.other = torch.ones(4, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.constant + self.inner.same + self.inner.other


def test_constants_that_require_a_gradient_are_detached() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = export(ConstantWithGradient(), (X,), strict=False)
    for value in program.constants.values():
        value.requires_grad_()
    with pytest.warns(UserWarning, match="requires gradient") as said:
        ours = module(program)
    with pytest.warns(UserWarning, match="requires gradient") as torch_said:
        theirs = program.module()
    assert theirs.constant is theirs.inner.same
    assert ours.constant is ours.inner.same
    assert {str(w.message)[:40] for w in said} <= {str(w.message)[:40] for w in torch_said}
    assert_module_as_torch(program, (X,))
    assert not ours.constant.requires_grad


class WritesAnInputNamedAsABuiltin(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        input.add_(1)
        return input * 2


def test_writes_to_inputs_that_a_copy_of_the_graph_renames() -> None:
    program = export(WritesAnInputNamedAsABuiltin(), (X.clone(),), strict=False)
    program = program.run_decompositions({})
    theirs = outcome(lambda: torchs(program))
    ours, x = module(program), X.clone()
    torch.testing.assert_close(ours(x), (X + 1) * 2)
    torch.testing.assert_close(x, X + 1)
    if not isinstance(theirs, Exception):
        assert ours.code == theirs.code
