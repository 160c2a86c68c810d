"""Run Dynamo's bytecode for a callable, to flatten inputs and to build the callable's result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.graph import CodeGen

from fxpress._torch.capture import CaptureOutput, DisableTorchDispatch, detect_fake_mode, untraced
from fxpress._torch.fx import pytree
from fxpress._torch.versions import features


class InputProcessor:
    """Split the inputs of a captured module into args and kwargs of the callable.

    Stands in for `torch._dynamo.functional_export.InputProcessor`.

    Args:
        root: the object to pass as `self`: the captured module, or the object of a method; None
            for plain functions.
        num_args: the number of positional inputs.
        kwarg_names: the names of the inputs after the positional ones.

    Example:
        >>> from fxpress.functional_export import InputProcessor
        >>> InputProcessor(None, 1, ["scale"])((x, 2))[1]
        {'scale': 2}
    """

    def __init__(self, root: object, num_args: int, kwarg_names: list[str]) -> None:
        self.root = root
        self.num_args = num_args
        self.kwarg_names = kwarg_names

    def __call__(self, inputs: tuple[object, ...]) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the (args, kwargs) to run the bytecode with.

        Raises:
            AssertionError: the root's CodeGen is not Dynamo's, or does not use this processor.
        """
        args = inputs[: self.num_args]
        kwargs = dict(zip(self.kwarg_names, inputs[self.num_args :], strict=False))
        if self.root is None:
            return args, kwargs
        if isinstance(self.root, torch.fx.GraphModule):
            codegen = self.root.graph._codegen
            if not isinstance(codegen, _DynamoBytecodeCodeGen):
                raise AssertionError(
                    f"expected a code generator for Dynamo's bytecode, found {type(codegen)}"
                )
            own = getattr(codegen.dynamo_bytecode_flatten, "input_processor", None)
            if own is None:
                raise AssertionError(
                    "the module's dynamo_bytecode_flatten does not have an input_processor"
                )
            if own is not self:
                raise AssertionError("the input_processor belongs to another module")
        return (self.root, *args), kwargs

    def __deepcopy__(self, memo: dict[int, Any]) -> InputProcessor:
        """Copy the processor. If `memo` has a copy of the root, the new processor uses it."""
        root = memo.get(id(self.root), self.root)
        return InputProcessor(root, self.num_args, list(self.kwarg_names))


class Yield(Exception):  # noqa: N818 - torch's name
    """The exception that stops the bytecode where it would call the compiled graph.

    Stands in for `torch._dynamo.functional_export.Yield`.

    Example:
        >>> from fxpress.functional_export import Yield
        >>> issubclass(Yield, Exception)
        True
    """


class _Replay:
    """Runs the bytecode with `backend` in place of the compiled graph."""

    def __init__(
        self, input_processor: InputProcessor, out: CaptureOutput, f_globals: dict[str, object]
    ) -> None:
        self.input_processor = input_processor
        self.out = out
        self.f_globals = f_globals

    def _run(self, backend: Callable[..., Any], inputs: tuple[object, ...]) -> object:
        args, kwargs = self.input_processor(inputs)
        replay = self.out.forward_callable(compiled_fn=backend, extra_globals=self.f_globals)
        return replay(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return an object with this object's bytecode and a copy of the processor."""
        processor = memo.get(id(self.input_processor))
        if processor is None:
            processor = self.input_processor.__deepcopy__(memo)
            memo[id(self.input_processor)] = processor
        return type(self)(processor, self.out, self.f_globals)


class DynamoBytecodeFlatten(_Replay):
    """Convert the inputs of the callable to the inputs of the captured graph.

    Stands in for `torch._dynamo.functional_export.DynamoBytecodeFlatten`.

    Args:
        input_processor: splits inputs into args and kwargs.
        out: Dynamo's result of the capture.
        f_globals: the globals of the callable.

    Attributes:
        gm_inputs: the result of the last call.

    Example:
        >>> from fxpress import functional_export
        >>> captured = functional_export.dynamo_graph_capture_for_export(model)(x)
        >>> inputs = captured._dynamo_bytecode_flatten(x)  # the parameters too
        >>> len(inputs) == len(captured.graph.find_nodes(op="placeholder"))
        True
    """

    gm_inputs: tuple[Any, ...] | None = None

    @untraced
    def __call__(self, *inputs: object) -> object:
        """Return the inputs of the graph; RuntimeError: the bytecode does not call the graph."""

        def backend(*graph_inputs: object) -> None:
            raise Yield(graph_inputs)

        try:
            self._run(backend, inputs)
        except Yield as ended:
            (self.gm_inputs,) = ended.args
            return ended.args[0]  # another thread may have changed gm_inputs
        raise RuntimeError("the captured bytecode ended without calling its graph")


class DynamoBytecodeUnflatten(_Replay):
    """Convert the outputs of the captured graph to the result of the callable.

    Stands in for `torch._dynamo.functional_export.DynamoBytecodeUnflatten`.

    Args:
        input_processor: splits inputs into args and kwargs.
        out: Dynamo's result of the capture.
        f_globals: the globals of the callable.

    Example:
        >>> from fxpress import functional_export
        >>> captured = functional_export.dynamo_graph_capture_for_export(model)(x)
        >>> captured._dynamo_bytecode_unflatten((x,), x) is x  # as if the graph had returned x
        True
    """

    @untraced
    def __call__(self, flat_outs: Sequence[object], inputs: tuple[object, ...]) -> object:
        with DisableTorchDispatch():
            return self._run(lambda *_: flat_outs, inputs)


class _DynamoBytecodeCodeGen(CodeGen):  # type: ignore[misc]
    """Generates a `forward` that has the callable's arguments, and runs the graph and bytecode.

    Stands in for `torch._dynamo.functional_export._DynamoBytecodeCodeGen`.

    Args:
        orig_arg_names: the names of the callable's arguments.
        dynamo_bytecode_flatten, dynamo_bytecode_unflatten: functions that run the bytecode.

    Attributes:
        wrap_tuple: whether `forward` returns the callable's result in a tuple.

    Example:
        >>> from fxpress import functional_export
        >>> captured = functional_export.dynamo_graph_capture_for_export(model)(x)
        >>> captured.graph._codegen.orig_arg_names
        ['args_0']
    """

    def __init__(
        self,
        orig_arg_names: list[str],
        dynamo_bytecode_flatten: Callable[..., Any],
        dynamo_bytecode_unflatten: Callable[..., Any],
    ) -> None:
        super().__init__()
        self.orig_arg_names = orig_arg_names
        self.dynamo_bytecode_flatten = dynamo_bytecode_flatten
        self.dynamo_bytecode_unflatten = dynamo_bytecode_unflatten
        self.wrap_tuple = False
        self._inputs: tuple[Any, ...] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> _DynamoBytecodeCodeGen:
        """Copy, but share the bytecode functions: `_deepcopy` of the module replaces them."""
        made = type(self)(
            list(self.orig_arg_names), self.dynamo_bytecode_flatten, self.dynamo_bytecode_unflatten
        )
        made.wrap_tuple = self.wrap_tuple
        return made

    def process_inputs(self, *inputs: Any) -> Any:
        """Return the inputs of the graph from the arguments of an interpreter's `run`."""
        self._inputs = inputs
        results = self.dynamo_bytecode_flatten(*inputs)
        mode = detect_fake_mode()
        if mode is not None and any(
            isinstance(leaf, torch.Tensor) and not mode.is_our_fake(leaf)
            for leaf in pytree.tree_leaves(results)
        ):
            # The bytecode reads real tensors of the module, which callers cannot make fake. Traces
            # of backward passes read them later too, so the setting is not restored.
            mode.allow_non_fake_inputs = True
        return results

    def process_outputs(self, outputs: Any) -> Any:
        """Return the result of the callable from the graph's outputs, for an interpreter's `run`.

        Raises:
            AssertionError: `process_inputs` was not called before. Some releases do not raise.
        """
        if self._inputs is None and features.outputs_need_inputs:
            raise AssertionError("process_outputs called before process_inputs")
        results = self.dynamo_bytecode_unflatten(outputs, self._inputs)
        self._inputs = None
        return (results,) if self.wrap_tuple else results

    def _arguments(self) -> list[str]:
        """Return the argument names; `self` is renamed, because `forward` has its own `self`."""
        names: list[str] = []
        for name in self.orig_arg_names:
            made = name
            while made == "self" or (made != name and made in self.orig_arg_names):
                made += "_"
            names.append(made)
        return names

    def gen_fn_def(
        self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False
    ) -> str:
        """Return the first lines of `forward`."""
        arguments = self._arguments()
        head: str = super().gen_fn_def(
            arguments[:], maybe_return_annotation, expanded_def=expanded_def
        )
        return head + self.gen_var_bindings(arguments, free_vars, expanded_def)

    def gen_var_bindings(self, fn_args: list[str], free_vars: list[str], expanded_def: bool) -> str:
        """Return the lines that set the variables of the placeholders."""
        packed = f"{fn_args[0]}, " if len(fn_args) == 1 else ", ".join(fn_args)
        lines = f"\n    _fn_args = ({packed})"
        if free_vars:
            placeholders = ", ".join(each.split(":")[0].split("#")[0] for each in free_vars)
            lines += f"\n    {placeholders}, = self._dynamo_bytecode_flatten(*_fn_args)"
        return lines

    def generate_output(
        self,
        output_args: Any,
        *,
        descs: object | None = None,
        repr_fn: Callable[[Any], str] | None = None,
    ) -> str:
        """Return the return statement."""
        values = ", ".join(map(repr_fn or repr, output_args))
        returned = f"self._dynamo_bytecode_unflatten(({values},), _fn_args)"
        return f"return ({returned},)" if self.wrap_tuple else f"return {returned}"
