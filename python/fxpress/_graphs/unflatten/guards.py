"""Generate functions that check the guards on the inputs of an exported program."""

from __future__ import annotations

import ast
import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
import torch.fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fxpress._torch import unlift as torch_unlift
from fxpress._torch.fx import TreeSpec, pytree


def argument_names(in_spec: TreeSpec, signature: Any) -> list[str]:
    """Return the names of `forward`'s parameters; if not recorded at export, `arg_0`, `arg_1`, …"""
    if signature and signature.forward_arg_names:
        names: list[str] = signature.forward_arg_names
        return names
    children = in_spec.children()
    if in_spec.type is tuple and [child.type for child in children] == [tuple, dict]:
        args, kwargs = children
        return [*(f"arg_{i}" for i in range(args.num_children)), *kwargs.context]
    return [f"arg_{i}" for i in range(in_spec.num_children)]


def _parameters(program: ExportedProgram) -> list[str]:
    """Return the names of the parameters of `forward`, without `self`."""
    signature = program.module_call_graph[0].signature  # program.call_spec is slower
    names = argument_names(signature.in_spec, signature)
    return names[1:] if names[:1] == ["self"] else names


def guards_module(program: ExportedProgram, placeholders: list[torch.fx.Node]) -> torch.nn.Module:
    """Return a module whose `forward(*inputs)` raises if the flat inputs violate a guard."""
    names = _parameters(program)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    inputs = Inputs.bound(signature, program.example_inputs)
    code = of_placeholders(placeholders, program.range_constraints, inputs.sources)
    code += of_trace(torch_unlift.guards_of_trace(program), inputs, names)
    return as_module(code, inputs)


def input_guards(program: ExportedProgram) -> tuple[list[str], Inputs] | None:
    """Return a program's guards and Inputs; None if it lacks traced guards or example inputs."""
    traced = torch_unlift.guards_of_trace(program)
    if not traced or not program.example_inputs:
        return None
    names = _parameters(program)
    args, kwargs = program.example_inputs
    by_name = {name: kwargs[name] for name in names[len(args) :] if name in kwargs}
    inputs = Inputs({**dict(zip(names, args, strict=False)), **by_name})
    placeholders = user_inputs(program)
    code = []
    for node, source in zip(placeholders, inputs.sources, strict=True):
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            code.append(f"{source}.dim() == {value.dim()}")
        elif isinstance(value, (int, float, str)):
            code.append(f"type({source}) is {type(value).__name__}")
    code += of_placeholders(placeholders, program.range_constraints, inputs.sources)
    return code + of_trace(traced, inputs, names), inputs


def of_trace_by_name(program: ExportedProgram, names: Sequence[str]) -> list[str]:
    """Return the guards that the program's trace recorded, with `L[names[i]]` for flat input i."""
    traced = torch_unlift.guards_of_trace(program)
    if not traced:
        return []
    spec = program.call_spec.in_spec
    args, kwargs = pytree.tree_unflatten([*range(spec.num_leaves)], spec)
    parameters = _parameters(program)
    inputs = Inputs({**dict(zip(parameters, args, strict=False)), **kwargs})
    return inputs.rewrite(of_trace(traced, inputs, parameters), [f"L[{name!r}]" for name in names])


def user_inputs(program: ExportedProgram) -> list[torch.fx.Node]:
    """Return the placeholders of the inputs that callers pass."""
    nodes = program.graph.find_nodes(op="placeholder")
    specs = program.graph_signature.input_specs
    # Not strict: a signature of another length raises an error later, when inputs are read.
    return [n for n, spec in zip(nodes, specs, strict=False) if spec.kind is InputKind.USER_INPUT]


def check_own_inputs(program: ExportedProgram) -> None:
    """Evaluate the program's guards on its fake inputs; this may add guards to the ShapeEnv."""
    placeholders = user_inputs(program)
    if placeholders and program.example_inputs and torch_unlift.guards_are_welcome():
        values = [node.meta["val"] for node in placeholders]
        guards_module(program, placeholders)(*values)


class Inputs:
    """The texts of flat inputs: `sources` in guards (`L['x'][0]`), `shown` in messages (`x[0]`)."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        """Find the flat inputs in `arguments`: {parameter of `forward`: example input}."""
        paths = [path for path, _ in pytree.tree_leaves_with_path(arguments)]
        self.sources = ["L" + pytree.keystr(path) for path in paths]
        self.shown = [path[0].key + pytree.keystr(path[1:]) for path in paths]

    @classmethod
    def bound(cls, signature: inspect.Signature, example: tuple[Any, Any]) -> Inputs:
        """Return the Inputs of example (args, kwargs), bound to the parameters of `forward`."""
        bound = signature.bind(*example[0], **example[1])
        bound.apply_defaults()
        return cls(bound.arguments)

    def rewrite(self, guards: list[str], texts: Sequence[str]) -> list[str]:
        """Return the guards with each `sources[i]` replaced by `texts[i]`."""
        if not self.sources:
            return guards
        text_of = dict(zip(self.sources, texts, strict=True))
        known = re.compile("|".join(map(re.escape, self.sources)))
        return [known.sub(lambda match: text_of[match[0]], guard) for guard in guards]


def of_placeholders(
    placeholders: Iterable[torch.fx.Node], ranges: Mapping[Any, Any], sources: Iterable[str]
) -> list[str]:
    """Return guards on inputs that follow from placeholders' meta: constants, sizes and ranges."""
    guards = _PlaceholderGuards(ranges)
    for placeholder, source in zip(placeholders, sources, strict=False):
        guards.add_input(placeholder.meta["val"], source)
    guards.add_equations()
    return guards.code


class _PlaceholderGuards:
    def __init__(self, ranges: Mapping[Any, Any]) -> None:
        self.code: list[str] = []
        self._ranges = ranges
        self._source_of: dict[sympy.Expr, str] = {}
        self._of_one_symbol: list[tuple[str, sympy.Expr]] = []

    def add_input(self, value: Any, source: str) -> None:
        if isinstance(value, (int, float, str)):
            self.code.append(_equals_constant(value, source))
        elif isinstance(value, torch.SymInt):
            self._add_symbolic(value, source)
        elif isinstance(value, torch.Tensor):
            for i, size in enumerate(value.shape):
                if isinstance(size, int):
                    self.code.append(f"{source}.size()[{i}] == {size}")
                elif isinstance(size, torch.SymInt):
                    self._add_symbolic(size, f"{source}.size()[{i}]")

    def _add_symbolic(self, value: torch.SymInt, source: str) -> None:
        expression = value.node.expr
        if expression not in self._ranges:
            return
        if len(expression.free_symbols) == 1:
            self._of_one_symbol.append((source, expression))
        if expression in self._source_of:
            self.code.append(f"{source} == {self._source_of[expression]}")
            return
        self._source_of[expression] = source
        low, high = torch_unlift.range_as_ints(self._ranges[expression])
        if low > 2:
            self.code.append(f"{source} >= {low}")
        if high < math.inf:
            self.code.append(f"{source} <= {high}")

    def add_equations(self) -> None:
        """Guard sizes such as `s0 + 1`. If no size is `s0`, solve the first of them for `s0`."""
        known: dict[sympy.Symbol, sympy.Expr] = {}
        for source, expression in self._of_one_symbol:
            symbol = next(iter(expression.free_symbols))
            if symbol in self._source_of:
                continue
            size = sympy.Symbol(source)
            if symbol in known:
                equation = sympy.Eq(expression.subs(known), size)
                self.code.append(torch_unlift.PythonPrinter().doprint(equation))
                continue
            solution = torch_unlift.solved_for(sympy.Eq(expression, size), symbol)
            if solution is not None:
                known[symbol] = solution


def _equals_constant(value: int | float | str, source: str) -> str:
    if isinstance(value, str):
        return f"{source} == '{value}'"
    if isinstance(value, float) and math.isnan(value):
        return f"math.isnan({source})"
    if isinstance(value, float) and math.isinf(value):
        return f"{source} == {'-' if value < 0 else ''}math.inf"
    return f"{source} == {value}"


_FLAT_INPUT = re.compile(r"L\['flat_args'\]\[([0-9]+)\]")
_ITEM = re.compile(r"L\['([^']+)'\]\[([0-9]+)\]")
_NUMBERED = re.compile(r"(.+)_([0-9]+)")


def of_trace(guards: Iterable[str], inputs: Inputs, parameters: Iterable[str]) -> list[str]:
    """Return the guards of a trace, with `inputs.sources` in place of the trace's input names."""
    # Guards may have `L['flat_args'][i]` for flat input i, and `L['x'][1]` for the parameter `x_1`.
    named = {pair for name in parameters for pair in _NUMBERED.findall(name)}

    def flat_input(match: re.Match[str]) -> str:
        number = int(match[1])
        return inputs.sources[number] if number < len(inputs.sources) else match[0]

    def item(match: re.Match[str]) -> str:
        return f"L['{match[1]}_{match[2]}']" if match.groups() in named else match[0]

    return [_ITEM.sub(item, _FLAT_INPUT.sub(flat_input, guard)) for guard in guards]


# Matches a comparison whose text `ast.unparse` would not change.
_VALUE = r"(?:[A-Za-z_]\w*(?:\[(?:'\w+'|[0-9]+)\])*(?:\.size\(\)\[[0-9]+\])?|[0-9]+)"
_PLAIN = re.compile(f"{_VALUE} (?:==|>=|<=) {_VALUE}", re.ASCII)


def _normalized(guard: str) -> str:
    """Return the text of a guard without redundant parentheses, for the message if it fails."""
    if _PLAIN.fullmatch(guard):
        return guard
    try:
        return ast.unparse(ast.parse(guard, mode="eval"))
    except RecursionError as error:
        warnings.warn(f"ast.unparse failed for guard expression: {error}", stacklevel=2)
        return guard


def as_function(guards: list[str], inputs: Inputs) -> Callable[..., None]:
    """Return a function `_(*flat inputs)`, named as in torch, that raises if a guard fails."""
    checked = inputs.rewrite(guards, [f"args[{i}]" for i in range(len(inputs.sources))])
    shown = inputs.rewrite(guards, inputs.shown)
    lines = ["", "def _(*args):"]
    for check, text in zip(checked, shown, strict=True):
        message = _normalized(text.replace("\n", ""))
        lines.append(f'  torch._assert({check}, "Guard failed: {message}")')
    lines += ["  return", ""]
    namespace = dict(torch_unlift.GUARD_NAMES)
    exec("\n".join(lines), namespace)
    function: Callable[..., None] = namespace["_"]
    return function


def as_module(guards: list[str], inputs: Inputs) -> torch.nn.Module:
    """Return a module whose `forward` is the result of `as_function`."""
    module: Any = torch_unlift.GuardsFn()
    module.forward = torch_unlift.dont_skip_tracing(as_function(guards, inputs))
    module._is_impure = True  # keeps the unused call of the module in the graph
    return module
