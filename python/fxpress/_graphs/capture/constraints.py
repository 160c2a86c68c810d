"""Check the user's constraints on input sizes against the constraints that tracing found."""

from __future__ import annotations

import contextvars
import functools
import inspect
import traceback
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import sympy
import torch

from fxpress import _native
from fxpress._base.signatures import expand_aliases
from fxpress._graphs.capture.root_names import post_process_error_msg
from fxpress._torch import capture as compat

Check: TypeAlias = Literal["guards", "light"]

_check: contextvars.ContextVar[Check] = contextvars.ContextVar("fxpress_check", default="guards")


@expand_aliases
def check_constraints(check: Check) -> _native.Block:
    """Return a context manager that sets how captures of this thread or task check constraints.

    torch has no such function.

    Args:
        check: with `"guards"`, a capture builds and discards all guards of the traced code, as
            torch does. With `"light"`, it builds only the guards on sizes, and raises the same
            errors. If a logger shows guards, a capture builds all guards in both cases.

    Raises:
        ValueError: `check` is neither `"guards"` nor `"light"`.

    Example:
        >>> from fxpress.functional_export import check_constraints
        >>> with fxpress.installed(), check_constraints("light"):
        ...     exported = torch.export.export(model, (x,), strict=True)
    """
    if check not in ("guards", "light"):
        raise ValueError(f'check must be "guards" or "light", not {check!r}')
    return _native.Block(functools.partial(_check.set, check), _check.reset)


def _suggest_or_raise_constraint_violation(
    module_to_trace: torch.nn.Module,
    orig_callable: Callable[..., Any],
    fake_mode: Any,
    graph_capture_output: compat.CaptureOutput,
    args: Any,
    kwargs: Any,
    dynamic_shapes: dict[str, Any] | tuple[Any] | list[Any] | None,
) -> None:
    """Raise an error if the constraints on inputs do not hold; otherwise log the constraints.

    Stands in for `torch._dynamo.functional_export._suggest_or_raise_constraint_violation`.

    Args:
        module_to_trace: the `ModuleToTrace` that Dynamo traced.
        orig_callable: the user's callable, which `module_to_trace` calls.
        fake_mode: the fake mode of the capture; None if the callable computed nothing.
        graph_capture_output: Dynamo's result.
        args, kwargs: the example arguments.
        dynamic_shapes: the user's dynamic shapes, for the message.

    Raises:
        ConstraintViolationError: constraints do not hold. The message suggests others.

    Example:
        >>> from fxpress.functional_export import _suggest_or_raise_constraint_violation as check
        >>> check(model, model, None, None, (x,), {}, None)  # nothing was computed: no error
    """
    error = _violation(module_to_trace, graph_capture_output)
    shape_env = getattr(fake_mode, "shape_env", None)
    constraints = getattr(shape_env, "dim_constraints", None)
    if constraints is not None and not isinstance(module_to_trace.forward, compat.OPERATORS):
        constraints.solve()
        forced = constraints.forced_specializations()
        advice = constraints.prettify_results(
            inspect.signature(orig_callable), dynamic_shapes, error, forced
        )
        if error is not None:
            error.args = (error.args[0] + advice if error.args else advice,)
        elif forced:
            error = compat.ConstraintViolationError(advice)
        else:
            compat.log.info("Summary of dimension constraints:%s", advice)
        error = _static_value(shape_env) or error
    if error is not None:
        raise post_process_error_msg(error, orig_callable, args, kwargs)


def _violation(
    module_to_trace: torch.nn.Module, captured: compat.CaptureOutput
) -> compat.ConstraintViolationError | None:
    """Build the guards of the traced code; return the ConstraintViolationError, or None."""
    function, _ = compat.get_traced_fn(module_to_trace)
    guarded = captured.graph_capture_output
    if _check.get() == "light" and not compat.guards_are_logged():
        guarded = compat.with_shape_guards_only(guarded)
    try:
        guarded.build_guards(function.__code__)
    except compat.ConstraintViolationError as error:
        return error
    return None


def _static_value(shape_env: Any) -> compat.ConstraintViolationError | None:
    """Return an error if tracing has made a constrained size a constant; None otherwise."""
    numbers = [key for key in shape_env.var_to_range if isinstance(key, sympy.Integer)]
    if not numbers:
        return None
    stack = "".join(traceback.format_list(shape_env.var_to_stack[numbers[-1]]))
    return compat.ConstraintViolationError(
        f"{stack}\nIt appears that you're trying to set a constraint on a value which we evaluated "
        f'to have a static value of {numbers[-1]}. Set TORCH_LOGS="+export" for more information.'
    )
