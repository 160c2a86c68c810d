"""Build torch's `Pipe` from a program."""

from __future__ import annotations

import operator

import torch
from torch.distributed.pipelining import Pipe
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from fxpress._distributed.errors import StageError
from fxpress._distributed.stages.build import build
from fxpress._distributed.stages.costs import By
from fxpress._distributed.stages.cut import Cut, Stage, cut, shared_of_cut
from fxpress._distributed.stages.ends import is_mutation, value_of
from fxpress._distributed.stages.plan import check
from fxpress._distributed.stages.plan import plan as make_plan
from fxpress._distributed.stages.planned import Plan
from fxpress._graphs.unflatten.guards import argument_names
from fxpress._graphs.unflatten.modules import unflatten
from fxpress._torch.fx import pytree_codegen
from fxpress._torch.watching import operation

_PREFIX = "submod_pp_"  # torch's `Pipe` finds stages by this prefix of their names


@operation("pipeline.to_pipe", lambda made, *_, **__: {"stages": made.num_stages})
def to_pipe(program: ExportedProgram, plan: Plan | int, *, by: By = "parameters") -> Pipe:
    """Return a `torch.distributed.pipelining.Pipe`, for use with torch's own functions.

    The stages of the pipe have the modules and the names of the program, and run on fxpress's
    engine. Torch sends a value from the stage that computes it to each stage that uses it. The
    first stage takes all inputs of the program, and passes on the inputs that later stages use; the
    last stage returns all results.

    Torch's stages read the sizes of received tensors from the program, so these sizes must be
    integers: export the model without dynamic sizes, and with the batch size of a microbatch.

    Args:
        program: the program. Each stage of the pipe has a copy of the weights that it uses.
        plan: the result of `plan` for the program, or the number of stages to plan.
        by: the quantity to balance if `plan` is a number of stages; see the function `plan`.

    Raises:
        StageError: the program cannot be cut by this plan; an input, or a value that passes between
            stages, is not a tensor; or a size of a passed tensor is a symbol. Torch's `Pipe` does
            not support these programs; `save_stages` does.

    Stands in for `torch.distributed.pipelining.pipeline`.

    Example:
        >>> from fxpress import pipeline
        >>> pipe = pipeline.to_pipe(program, 2)
        >>> pipe.num_stages, torch.equal(pipe(x), program.module()(x))
        (2, True)
    """
    if isinstance(plan, Plan):
        check(plan, program)
        chosen = plan
    else:
        chosen = make_plan(program, plan, by)
    whole = cut(program, chosen.stage_of(program))
    _pass_ends(whole)
    _check_values(whole)
    graph, root = Graph(), torch.nn.Module()
    values: dict[Node, Node] = {}
    for node in whole.ends.inputs:
        values[node] = graph.placeholder(node.name)
        values[node].meta = dict(node.meta)
    for stage in whole.stages:
        name = f"{_PREFIX}{stage.number}"
        root.add_module(name, _module(build(program, whole.ends, stage)))
        _call(graph, name, stage, values)
    results = [value for value, spec in whole.ends.results if not is_mutation(spec)]
    graph.output(tuple(values[each] if isinstance(each, Node) else each for each in results))
    spec = program.call_spec
    names = argument_names(spec.in_spec, program.module_call_graph[0].signature)
    graph.set_codegen(pytree_codegen(names, spec.in_spec, spec.out_spec))
    pipe = Pipe(GraphModule(root, graph), len(whole.stages), False, None)
    parameters = {*program.graph_signature.parameters}
    pipe.replicated_params = [
        _replicated(whole, names, stages)
        for names, stages in shared_of_cut(program, whole)
        if not parameters.isdisjoint(names)
    ]
    return pipe


def _replicated(whole: Cut, names: list[str], stages: list[int]) -> dict[str, str]:
    """Return a map: name of a stage in the pipe -> which of a weight's `names` this stage uses."""
    found = {}
    for number in stages:
        own = {str(whole.ends.state[node].target) for node in whole.stages[number].state}
        found[f"{_PREFIX}{number}"] = next(name for name in names if name in own)
    return found


def _module(program: ExportedProgram) -> GraphModule:
    """Return the module of a stage, which accepts inputs by position or by name."""
    unflattened = unflatten(program)
    module = GraphModule(unflattened, unflattened.graph)
    if len(output := module.graph.output_node().args[0]) == 1:
        module.graph.output_node().args = (output[0],)
        module.recompile()
    return module


def _pass_ends(whole: Cut) -> None:
    """Make the first stage take all inputs of the program. Make the last one return all results."""
    first, last = whole.stages[0], whole.stages[-1]
    results = [value for value, spec in whole.ends.results if not is_mutation(spec)]
    last.outputs = dict.fromkeys(value for value in results if isinstance(value, Node))
    if first is last:
        return
    for node in last.outputs:
        if node in whole.ends.inputs or whole.maker[node] != last.number:
            last.inputs[node] = None
    first.inputs = dict.fromkeys(whole.ends.inputs)
    for stage in whole.stages[1:]:
        first.outputs.update((node, None) for node in stage.inputs if node in whole.ends.inputs)
    # torch matches sent values and the inputs of a later stage only by their order.
    made = [node for stage in whole.stages for node in stage.outputs]
    for stage in whole.stages[1:]:
        stage.inputs = dict.fromkeys(node for node in made if node in stage.inputs)


def _check_values(whole: Cut) -> None:
    """Raise StageError for values with which torch's stages would fail later, on some ranks."""
    for stage in whole.stages:
        for node in stage.inputs:
            value = value_of(node)
            is_given = node in whole.ends.inputs
            if not isinstance(value, torch.Tensor):
                if is_given:
                    raise StageError(
                        f"the input {node} is not a tensor: stages of torch's Pipe take tensors"
                    )
                raise StageError(
                    f"{node} passes from stage {whole.maker[node]} to {stage.number}, and is not a"
                    " tensor: torch's Pipe sends tensors only"
                )
            if stage.number and not _has_plain_sizes(value):
                maker = 0 if is_given else whole.maker[node]
                raise StageError(
                    f"{node} passes from stage {maker} to {stage.number}, and its size is dynamic: "
                    "export the model with static sizes, and with the size of a microbatch"
                )


def _has_plain_sizes(value: torch.Tensor) -> bool:
    strides = value.stride() if value.layout is torch.strided else ()
    return all(type(size) is int for size in (*value.shape, *strides))


def _call(graph: Graph, name: str, stage: Stage, values: dict[Node, Node]) -> None:
    made = graph.call_module(name, tuple(values[node] for node in stage.inputs))
    outputs = list(stage.outputs)
    if len(outputs) == 1:
        values[outputs[0]] = made
        return
    for number, node in enumerate(outputs):
        values[node] = graph.call_function(operator.getitem, (made, number))
