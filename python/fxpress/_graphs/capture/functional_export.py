"""Capture callables as graphs: Dynamo traces; native code rewrites the graph and cleans names."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch.fx import Graph, GraphModule

from fxpress import _native
from fxpress._base.frame_space import with_space
from fxpress._base.observing.progress import Progress, check_progress, reporting
from fxpress._base.signatures import expand_aliases
from fxpress._graphs.capture.constraints import (
    Check,
    _suggest_or_raise_constraint_violation,
    check_constraints,
)
from fxpress._graphs.capture.from_bytecode import create_fx_graph_from_captured_output, op_wrapper
from fxpress._graphs.capture.root_names import clean_nn_module_stack_and_source_fn
from fxpress._graphs.capture.transformer import rewrite_and_clean
from fxpress._torch import capture as compat
from fxpress._torch.fx import pytree, pytree_codegen
from fxpress._torch.watching import operation, phase


class ModuleToTrace(torch.nn.Module):  # type: ignore[misc]
    """Call a callable with flat inputs, and return flat outputs with the spec of its result.

    Stands in for `torch._dynamo.functional_export.ModuleToTrace`.

    Args:
        foo: the callable.
        in_spec: the tree spec of the callable's `(args, kwargs)`.

    Example:
        >>> from torch.utils import _pytree
        >>> from fxpress.functional_export import ModuleToTrace
        >>> flat, spec = _pytree.tree_flatten(((x,), {}))
        >>> len(ModuleToTrace(model, spec)(*flat).flat_args)
        1
    """

    def __init__(self, foo: Any, in_spec: Any) -> None:
        super().__init__()
        self._export_root = foo
        self.in_spec = in_spec

    # Dynamo names inputs and outputs of the graph after the local variables of this function.
    @compat.as_traced_by_torch
    def forward(self, *flat_args: Any) -> Any:
        args, kwargs = pytree.tree_unflatten(flat_args, self.in_spec)
        res = self._export_root(*args, **kwargs)
        out_flat, out_spec = pytree.tree_flatten(res)
        return compat.ExportTracerOutput(out_flat, out_spec)


_P = ParamSpec("_P")
_R = TypeVar("_R")

clean_nn_module_stack = clean_nn_module_stack_and_source_fn  # the name in older releases of torch


def _untraced_operation(capture: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap a capture: report its calls as events, reserve stack space, and hide it from Dynamo."""
    watch = operation(
        "functional_export.capture", lambda m, *_, **__: {"nodes": len(m.graph.nodes)}
    )
    watched = watch(with_space(capture))
    made: Callable[_P, _R] = torch.compiler.disable(watched, reason="it is a capture")
    return made


@expand_aliases
def dynamo_graph_capture_for_export(
    fn: Callable[..., Any], constraints: list[Any] | None = None, *, progress: Progress = False
) -> Callable[..., Any]:
    """Return a function that captures a callable as a module with a graph and Dynamo's bytecode.

    Stands in for `torch._dynamo.functional_export.dynamo_graph_capture_for_export`.

    Args:
        fn: a function, a method, a module or an operator.
        constraints: the constraints on sizes of the inputs.
        progress: how to show progress, in steps: True, False or a function of (done, total, what).

    Returns:
        A function that takes the arguments of `fn`, as the example inputs of the capture. It
        returns a GraphModule, which also takes the arguments of `fn`.

    Raises:
        TypeError: `progress` is of another type.
        ImportError: `progress` needs a package that is not installed.

    Example:
        >>> from fxpress.functional_export import dynamo_graph_capture_for_export
        >>> captured = dynamo_graph_capture_for_export(model)(x)
        >>> torch.allclose(captured(x), model(x))
        True
    """
    check_progress(progress)
    if isinstance(fn, compat.OpOverload):
        fn = op_wrapper(fn)

    @_untraced_operation
    def capture(*args: Any, **kwargs: Any) -> Any:
        if compat.config.install_free_tensors:
            raise AssertionError("install_free_tensors must be False")
        with reporting(progress, "capturing", 2, "steps") as report:
            with (
                phase("trace"),
                compat.compiling_state(),
                compat.settings(replay_side_effects=False, side_effect_replay_policy="warn"),
                compat.timed(),
                _native.RareCollections(),
                compat.unwritten_code(),
            ):
                out = compat.fullgraph_capture(fn, args, kwargs, constraints=constraints)
            if report is not None:
                report(1)
            with phase("graph"):
                return create_fx_graph_from_captured_output(out, fn, args, kwargs)

    return capture


def _dynamo_graph_capture_for_export(
    mod: Callable[..., Any],
    *,
    constraints: list[Any] | None = None,
    dynamic_shapes: Any = None,
    check: Check | None = None,
    progress: Progress = False,
) -> Callable[..., GraphModule]:
    """Return a function that captures a callable as a graph with flat inputs and outputs.

    Strict export needs such graphs. Stands in for
    `torch._dynamo.functional_export._dynamo_graph_capture_for_export`.

    Args:
        mod: a module or another callable.
        constraints: the constraints on sizes of the inputs.
        dynamic_shapes: the user's dynamic shapes of the inputs, for messages. A `ParamsSpec` or a
            `ShapesSpec` of newer releases of torch also determines which sizes are symbols.
        check: `"guards"` or `"light"`, as for `check_constraints`; None: the value that
            `check_constraints` has set. torch has no such argument.
        progress: how to show progress, in steps: True, False or a function of (done, total, what).

    Returns:
        A function that takes the arguments of `mod`, as the example inputs of the capture. It
        returns a GraphModule, which also takes the arguments of `mod`. The function raises
        `UserError` for inputs whose types are not allowed in a graph, and
        `ConstraintViolationError` if constraints do not hold.

    Raises:
        TypeError: `progress` is of another type.
        ImportError: `progress` needs a package that is not installed.

    Example:
        >>> from fxpress.functional_export import _dynamo_graph_capture_for_export
        >>> captured = _dynamo_graph_capture_for_export(model)(x)
        >>> torch.allclose(captured(x), model(x))
        True
    """

    check_progress(progress)

    @_untraced_operation
    def capture(*args: Any, **kwargs: Any) -> GraphModule:
        with compat.compiling_state(), reporting(progress, "capturing", 3, "steps") as report:
            bound = compat.bound_spec(dynamic_shapes, mod, args, kwargs)
            spec, flat_inputs, in_spec = bound or (None, *pytree.tree_flatten((args, kwargs)))
            compat.check_inputs(flat_inputs)
            called = mod.forward if isinstance(mod, torch.nn.Module) else mod
            captured = _Captured(mod, flat_inputs, in_spec, constraints)
            compat.reset()  # otherwise, Dynamo would guard a new module only by its type
            checked = contextlib.nullcontext() if check is None else check_constraints(check)
            with compat.timed(), captured.settings(spec), checked, _native.RareCollections():
                with phase("trace"), compat.unwritten_code():
                    captured.trace()
                if report is not None:
                    report(1)
                if spec is None:  # sizes from a spec are unbacked, and have no constraints
                    with phase("constraints"):
                        _suggest_or_raise_constraint_violation(
                            captured.traced,
                            called,
                            captured.fake_mode,
                            captured.out,
                            args,
                            kwargs,
                            dynamic_shapes,
                        )
            if report is not None:
                report(1)
            with phase("graph"):
                made = captured.module()
            names = compat.argument_names(inspect.signature(called), args, kwargs)
            out_spec = captured.metadata.out_spec
            made.graph.set_codegen(pytree_codegen(names, in_spec, out_spec))
            # Code generation sets these specs too, but happens later or never.
            made._in_spec, made._out_spec = in_spec, out_spec
            return made

    return capture


class _Captured:
    """One capture: the inputs, and Dynamo's result, from which `module` builds the GraphModule."""

    def __init__(
        self,
        mod: Callable[..., Any],
        flat_inputs: list[Any],
        in_spec: Any,
        constraints: list[Any] | None,
    ) -> None:
        self.traced = ModuleToTrace(mod, in_spec)
        self.flat_inputs = flat_inputs
        self.constraints = constraints
        self.out: Any = None
        self.graph_module: GraphModule
        self.fake_mode: Any = None
        self.examples: list[Any] = []

    @staticmethod
    def settings(spec: Any) -> Any:
        """Return a block in which Dynamo has the settings for export."""
        of_spec = {} if spec is None else {"_dynamic_shapes_spec": spec}
        return compat.settings(
            **of_spec,
            specialize_int=True,
            specialize_float=True,
            assume_static_by_default=True,
            automatic_dynamic_shapes=False,
            capture_dynamic_output_shape_ops=True,
            capture_scalar_outputs=True,
            constant_fold_autograd_profiler_enabled=True,
            log_graph_in_out_metadata=True,
            install_free_tensors=compat.config.install_free_tensors_for_export,
        )

    def trace(self) -> None:
        self.out = compat.fullgraph_capture(
            self.traced,
            tuple(self.flat_inputs),
            constraints=self.constraints,
            _is_export_deprecated_do_not_use=True,
        )
        captured = self.out.backend_input
        if captured is None:  # the callable computes nothing
            graph = Graph()
            graph.output(None)
            self.graph_module = GraphModule(torch.nn.Module(), graph)
            return
        self.graph_module = captured.graph_module
        self.fake_mode = captured.fake_mode
        self.examples = captured.example_inputs

    @property
    def metadata(self) -> Any:
        return self.out.graph_capture_output.output_graph.export_metadata

    def _dynamic_dims(self) -> list[set[int]]:
        """Return, for each flat input, the dimensions that a constraint allows to vary."""
        found: dict[int, set[int]] = {}
        for each in self.constraints or ():
            is_relaxed = isinstance(each, compat.RelaxedConstraint)
            sizes = None if is_relaxed else each.constraint_range.vr
            if sizes is not None and sizes.lower != sizes.upper:
                found.setdefault(each.t_id, set()).add(each.dim)
        return [set(found.get(id(value), ())) for value in self.flat_inputs]

    def module(self) -> GraphModule:
        """Return the captured GraphModule, rewritten to the inputs and outputs of the callable."""
        dynamic_dims = self._dynamic_dims()
        sources = self.metadata.graph_input_idx_to_local_source
        # Index of a flat input -> position of its placeholder. Sources with slices are left out.
        order = {
            source.index: at
            for at, source in sources.items()
            if isinstance(source, compat.GetItemSource) and isinstance(source.index, int)
        }
        flat_inputs = list(self.flat_inputs)
        for i, at in order.items():
            flat_inputs[i] = self.examples[at]
        made = rewrite_and_clean(
            self.graph_module,
            flat_inputs,
            dynamic_dims,
            order,
            self.metadata.output_return_type,
            self.fake_mode,
            sources,
        )
        made.meta["module_call_specs"] = self.metadata.module_call_spec
        made.meta["fake_mode"] = self.fake_mode
        return made
