"""Check the user's constraints on sizes of inputs against the constraints from tracing."""

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
from fxpress._torch.capture import (
    OPERATORS,
    CaptureOutput,
    ConstraintViolationError,
    get_traced_fn,
    guards_are_logged,
    log,
    with_shape_guards_only,
)

Check: TypeAlias = Literal["guards", "light"]

_check: contextvars.ContextVar[Check] = contextvars.ContextVar("fxpress_check", default="guards")


@expand_aliases
def check_constraints(check: Check) -> _native.Block:
    """Return a block that sets how captures check constraints in this thread or task.

    torch has no such function.

    Args:
        check: `"guards"`: all guards of the traced code are built and discarded, as by torch;
            `"light"`: only the guards on sizes are built, with the same errors. While guards are
            logged, all guards are built.

    Raises:
        ValueError: another value.

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
    graph_capture_output: CaptureOutput,
    args: Any,
    kwargs: Any,
    dynamic_shapes: dict[str, Any] | tuple[Any] | list[Any] | None,
) -> None:
    """Raise an error if the constraints of inputs do not hold; otherwise log their summary.

    Stands in for `torch._dynamo.functional_export._suggest_or_raise_constraint_violation`.

    Args:
        module_to_trace: the module that Dynamo traced; `orig_callable`: the user's callable in it.
        fake_mode: the fake mode of the capture; None: nothing was computed.
        graph_capture_output: the result of Dynamo.
        args, kwargs: the example arguments.
        dynamic_shapes: the user's dynamic shapes, for the message.

    Raises:
        ConstraintViolationError: with a message that suggests other constraints.

    Example:
        >>> from fxpress.functional_export import _suggest_or_raise_constraint_violation as check
        >>> check(model, model, None, None, (x,), {}, None)  # nothing was computed: no error
    """
    error = _violation(module_to_trace, graph_capture_output)
    shape_env = getattr(fake_mode, "shape_env", None)
    constraints = getattr(shape_env, "dim_constraints", None)
    if constraints is not None and not isinstance(module_to_trace.forward, OPERATORS):
        constraints.solve()
        forced = constraints.forced_specializations()
        advice = constraints.prettify_results(
            inspect.signature(orig_callable), dynamic_shapes, error, forced
        )
        if error is not None:
            error.args = (error.args[0] + advice if error.args else advice,)
        elif forced:
            error = ConstraintViolationError(advice)
        else:
            log.info("Summary of dimension constraints:%s", advice)
        error = _static_value(shape_env) or error
    if error is not None:
        raise post_process_error_msg(error, orig_callable, args, kwargs)


def _violation(
    module_to_trace: torch.nn.Module, captured: CaptureOutput
) -> ConstraintViolationError | None:
    """Build guards for the traced code, which checks constraints, and return the violation."""
    function, _ = get_traced_fn(module_to_trace)
    guarded = captured.graph_capture_output
    if _check.get() == "light" and not guards_are_logged():
        guarded = with_shape_guards_only(guarded)
    try:
        guarded.build_guards(function.__code__)
    except ConstraintViolationError as error:
        return error
    return None


def _static_value(shape_env: Any) -> ConstraintViolationError | None:
    """Return the error for the last constraint on a value that tracing found to be a number."""
    numbers = [key for key in shape_env.var_to_range if isinstance(key, sympy.Integer)]
    if not numbers:
        return None
    stack = "".join(traceback.format_list(shape_env.var_to_stack[numbers[-1]]))
    return ConstraintViolationError(
        f"{stack}\nIt appears that you're trying to set a constraint on a value which we evaluated "
        f'to have a static value of {numbers[-1]}. Set TORCH_LOGS="+export" for more information.'
    )
