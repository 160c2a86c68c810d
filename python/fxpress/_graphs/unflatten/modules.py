"""Define the classes of the modules that `unflatten` creates, and `unflatten` itself."""

from __future__ import annotations

import contextlib
import logging
import types
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.fx
from torch.export import ExportedProgram

from fxpress import _native
from fxpress._base.observing.progress import Progress, check_progress
from fxpress._graphs import engine
from fxpress._graphs.unflatten import bodies, guards, inputs, modes, pickling, source
from fxpress._graphs.unflatten.dispatch import dispatch_modules
from fxpress._graphs.unflatten.source import _IVals
from fxpress._graphs.unflatten.switch import runs_with_interpreter
from fxpress._torch import deferred_code, native_tables
from fxpress._torch import export as torch_export
from fxpress._torch import fx as torch_fx
from fxpress._torch.fx import pytree
from fxpress._torch.watching import operation, phase

if TYPE_CHECKING:
    from typing_extensions import Self

native_tables.fx()

log = logging.getLogger("torch.export.unflatten")


def _sizes(made: torch.nn.Module, program: ExportedProgram) -> dict[str, int]:
    return {"nodes": len(program.graph.nodes), "modules": sum(1 for _ in made.modules())}


class _SubmoduleBase:
    """The base of unflattened modules. Stands in for `torch.export.unflatten._SubmoduleBase`."""

    _ty: str | None
    _title: ClassVar[str]  # the class name in the text of print_readable()
    _derived: ClassVar[tuple[str, ...]] = ()  # attributes that copies and pickles lack
    _with_graphs: ClassVar[tuple[str, ...]] = ("graph",)  # attributes that GraphPickler pickles

    def type_name(self) -> str | None:
        """Return the module's class in the eager model, as `module.qualname`; None: unknown."""
        return self._ty

    def _get_name(self) -> str:
        name = self.type_name()
        return str(name).rsplit(".", 1)[-1] if name else type(self).__name__

    def print_readable(
        self,
        print_output: bool = True,
        include_stride: bool = False,
        include_device: bool = False,
        colored: bool = False,
    ) -> str:
        """Return the Python code of this module and its submodules, with comments on shapes."""
        return self._readable(print_output, include_stride, include_device, colored)

    def _readable(self, *flags: bool) -> str:
        return torch_export.print_readable(self, self._title, *flags)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of this module and its submodules, unless their graphs contradict it.

        Raises:
            UnsupportedError: all operators with a mode were exported in the mode `not mode`.
        """
        modes.set_mode(self, mode, super().train)  # type: ignore[misc]
        return self

    def _forget_derived(self) -> None:
        for name in self._derived:
            self.__dict__.pop(name, None)

    def __getstate__(self) -> dict[str, Any]:
        return pickling.state_without(self, *self._derived)

    def __setstate__(self, state: dict[str, Any]) -> None:
        pickling.restore(self, state)

    def __copy__(self) -> Self:
        return pickling.shallow_copy(self)  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return pickling.deep_copy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return pickling.reduce(self)


# Keys of a module's `__dict__`. They contain a dot, so the model's state cannot have these names.
_SIGNED = "fxpress.signed_forward"
_PROGRAM_SPECS = "fxpress.program_specs"


class _Signed:
    """A descriptor of `forward`; an instance's `forward` has the exported model's signature."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self._function
        if torch.compiler.is_dynamo_compiling():
            return self._function.__get__(instance, owner)
        own = instance.__dict__.get(_SIGNED)
        if own is None:
            general = self._function
            own = types.FunctionType(general.__code__, general.__globals__, general.__name__)
            own.__signature__ = inputs.signature(instance)  # type: ignore[attr-defined]
            instance.__dict__[_SIGNED] = own
        return types.MethodType(own, instance)


# Dynamo must not compile `__get__` as a frame, because the frame would read the attribute again.
torch_export.skip_frame(_Signed.__get__)


def _make_graph_module(module: Any) -> torch.fx.GraphModule:
    made = _native.make_graph_module(module, module.graph)
    # Generate the code now: Dynamo reads `forward` from the class, and would not generate the code.
    deferred_code.materialize(type(made))
    return made


def _placeholders(module: Any) -> list[torch.fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _copy_of_signature(module: Any) -> Any:
    """Copy the program's signature at its first use, because it is large and few callers use it."""
    return source.copy_signature(*module.__dict__[_PROGRAM_SPECS])


def _make_runnable(module: Any) -> torch.fx.GraphModule:
    """Return the GraphModule to run, even if the model has an attribute named `graph_module`."""
    own = module.graph_module
    return own if own is module.__dict__.get("graph_module") else _make_graph_module(module)


class InterpreterModule(_SubmoduleBase, torch_export.InterpreterModule):  # type: ignore[misc]
    """A module that runs its graph on fxpress's engine.

    Stands in for `torch.export.unflatten.InterpreterModule`. Under Dynamo, and if it was created
    inside `_disable_interpreter`, it runs the code generated from the graph.

    Args:
        graph: the graph to run.
        ty: the class of the module in the eager model, as `module.qualname`; None: unknown.

    Example:
        >>> from fxpress.unflatten import unflatten
        >>> made = unflatten(program).get_submodule("0.norm")
        >>> made.type_name()
        'torch.nn.modules.normalization.LayerNorm'
    """

    _title = "InterpreterModule"
    _derived = ("_fxpress_runnable", "graph_module")
    graph: torch.fx.Graph
    graph_module = _native.ComputedAttribute("graph_module", _make_graph_module)
    _fxpress_runnable = _native.ComputedAttribute("_fxpress_runnable", _make_runnable)

    def __init__(self, graph: torch.fx.Graph, ty: str | None = None) -> None:
        torch.nn.Module.__init__(self)
        self.graph = graph
        self._ty = ty
        self.graph.owning_module = self
        self._run_with_interpreter = runs_with_interpreter()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch_fx.is_fx_symbolic_tracing() and (
            torch.compiler.is_dynamo_compiling() or not self._run_with_interpreter
        ):
            return type(self._fxpress_runnable).forward(self, *args, **kwargs)
        if "arg_names" not in self.__dict__:
            raise AssertionError(
                f"Didn't finalize this InterpreterModule: it has no graph to run ({self._ty})"
            )
        if kwargs:
            args = self._positional(args, kwargs)
        return engine.run(self, self.graph, args)

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments in the order of placeholders; keywords are names of placeholders."""
        rest = self.arg_names[len(args) :]
        values = (*args, *(kwargs[name] for name in rest if name in kwargs))
        if len(rest) != len(kwargs):
            raise AssertionError(
                f"kwarg_names length {len(rest)} does not match kwargs length {len(kwargs)}"
            )
        if len(values) != len(self.arg_names):
            raise AssertionError(
                f"arg_list length {len(values)} does not match arg_names length "
                f"{len(self.arg_names)}"
            )
        return values

    def finalize(self) -> None:
        """Check the graph and make the module ready to run. Call it after each edit of `graph`."""
        self._forget_derived()
        self.graph.lint()
        self.arg_names = [node.target for node in _placeholders(self)]


class InterpreterModuleDispatcher(_SubmoduleBase, torch_export.InterpreterModuleDispatcher):  # type: ignore[misc]
    """A module whose calls have different graphs; successive calls run successive graphs.

    Stands in for `torch.export.unflatten.InterpreterModuleDispatcher`. State, including buffers, is
    registered as in the original module.

    Args:
        attrs: the names of the module's own parameters, buffers and constants.
        call_modules: one module for each call, in order.

    Raises:
        AssertionError: `call_modules` is empty.

    Example:
        >>> from fxpress.unflatten import unflatten
        >>> class Either(torch.nn.Module):
        ...     def forward(self, x, doubles):
        ...         return x * 2 if doubles else x + 1
        >>> class Both(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.part = Either()
        ...     def forward(self, x):
        ...         return self.part(self.part(x, True), False)
        >>> exported = torch.export.export(
        ...     Both(), (x,), preserve_module_call_signature=("part",)
        ... )
        >>> type(unflatten(exported).part).__name__
        'InterpreterModuleDispatcher'
    """

    def __init__(self, attrs: set[str], call_modules: list[InterpreterModule]) -> None:
        torch.nn.Module.__init__(self)
        if not call_modules:
            raise AssertionError("call_modules must not be empty")
        first = call_modules[0]
        self._modules = first._modules
        for name in attrs:
            if name in first._buffers:
                persistent = name not in first._non_persistent_buffers_set
                self.register_buffer(name, first._buffers[name], persistent=persistent)
            else:
                setattr(self, name, getattr(first, name))
        self._ty = first._ty
        self._call_modules = call_modules
        self._num_calls = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        compiling = torch.compiler.is_dynamo_compiling()
        index = self._num_calls if compiling else engine.next_call(self)
        following = (index + 1) % len(self._call_modules)
        if compiling:
            self._num_calls = following
            return self._call_modules[index](*args, **kwargs)
        engine.set_next_call(self, following)
        try:
            return self._call_modules[index](*args, **kwargs)
        except Exception:
            engine.set_next_call(self, 0)
            raise

    def call_modules(self) -> list[InterpreterModule]:
        """Return the modules of the calls, in order."""
        return self._call_modules

    def _readable(self, *flags: bool) -> str:
        """Return the generated code of every call."""
        return "\n".join(call.print_readable(*flags) for call in self._call_modules)


class UnflattenedModule(_SubmoduleBase, torch_export.UnflattenedModule):  # type: ignore[misc]
    """An exported program as the tree of modules that it was traced from.

    Stands in for `torch.export.unflatten.UnflattenedModule`. Unlike torch's class, it does not
    change the program, and can be deep-copied, pickled, compiled and exported again.

    Args:
        export_module: the program.
        flat_args_adapter: adapts inputs of another structure to the program's structure.
        share_state: use the program's own tensors instead of copies.
        device: the device of the copies; None: the devices of the program's tensors.
        check_guards: check the inputs against all guards of the program, not only ranges.

    Raises:
        ValueError: the program has a backward signature.
        RuntimeError: a node has no `nn_module_stack`, or a module with a preserved signature needs
            a value that its callers do not pass.
        AssertionError, KeyError: the program contradicts its signature.
        UnsupportedError: two inputs of the program are constants of the same name.

    Example:
        >>> from fxpress.unflatten import UnflattenedModule
        >>> made = UnflattenedModule(program, share_state=True)
        >>> made.get_parameter("0.norm.weight") is program.state_dict["0.norm.weight"]
        True
    """

    _title = "UnflattenedModule"
    _derived = (
        _SIGNED,
        inputs.GUARD_FUNCTION,
        "_fxpress_runnable",
        "graph_module",
        "input_placeholders",
    )
    _with_graphs = ("graph", "graph_signature", "meta", "module_call_graph", _PROGRAM_SPECS)
    graph_module = _native.ComputedAttribute("graph_module", _make_graph_module)
    _fxpress_runnable = _native.ComputedAttribute("_fxpress_runnable", _make_runnable)
    input_placeholders = _native.ComputedAttribute("input_placeholders", _placeholders)
    graph_signature = _native.ComputedAttribute("graph_signature", _copy_of_signature)

    @operation(
        "unflatten.UnflattenedModule",
        lambda _, self, export_module, *__, **___: _sizes(self, export_module),
    )
    def __init__(
        self,
        export_module: ExportedProgram,
        flat_args_adapter: torch_export.FlatArgsAdapter | None = None,
        *,
        share_state: bool = False,
        device: torch.device | str | None = None,
        check_guards: bool = True,
    ) -> None:
        options = (share_state, device, False)
        self._assemble(
            export_module,
            flat_args_adapter,
            *options,
            drop_dead_code=False,
            check_guards=check_guards,
        )

    def _assemble(
        self,
        export_module: ExportedProgram,
        flat_args_adapter: torch_export.FlatArgsAdapter | None,
        share_state: bool,
        device: torch.device | str | None,
        progress: Progress,
        *,
        drop_dead_code: bool,
        check_guards: bool,
    ) -> None:
        """Create the tree; `drop_dead_code` leaves out nodes with neither effects nor users."""
        torch.nn.Module.__init__(self)
        signature = export_module.graph_signature
        if signature.backward_signature is not None:
            raise ValueError("Unflattening on JointExportModule NYI")
        first = export_module.module_call_graph[0].fqn
        if first != "":
            raise AssertionError(f"expected first fqn to be empty string, got {first!r}")
        specs = (signature, [*signature.input_specs], [*signature.output_specs])
        self.__dict__[_PROGRAM_SPECS] = specs
        self.graph = torch.fx.Graph()
        self.graph.owning_module = self
        self.module_call_graph = source.copy_calls(export_module.module_call_graph)
        self.flat_args_adapter = flat_args_adapter
        self.meta = {**export_module.graph_module.meta, "unflattened_module": self}
        self.adapted = False
        self._run_with_interpreter = runs_with_interpreter()
        self.range_constraints = export_module.range_constraints
        self.equality_constraints: list[Any] = []
        self.check_input_constraints = True
        self.ivals = _IVals()
        self._ty: str | None = None
        guards_and_inputs = guards.input_guards(export_module) if check_guards else None
        if guards_and_inputs is not None:
            self.__dict__[inputs.GUARDS] = guards_and_inputs
        target = None if device is None else torch.device(device)

        def build() -> None:
            program = torch_export.with_distinct_names(export_module)
            # The caller's `progress` function must not run while the garbage collector is paused.
            with _native.GcPause() if progress is False else contextlib.nullcontext():
                with phase("state"):
                    state = source.collect(
                        program, share_state=share_state, device=target, progress=progress
                    )
                with _native.GcPause(), phase("graph"):
                    facts = source.of_program(
                        program,
                        self.module_call_graph,
                        state,
                        (InterpreterModule, InterpreterModuleDispatcher),
                        run_with_interpreter=self._run_with_interpreter,
                        drop_dead_code=drop_dead_code,
                    )
                    facts["owner"] = bodies.copy_with_separate_bodies(program.graph_module)
                    self._ty, cuts = _native.unflatten(facts, self)
            if cuts:  # else no call, which could start a garbage collection
                log_cuts(cuts)

        _native.on_unchanged(export_module.graph, build)

    def process_forward_inputs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the flat inputs of a call, adapted and checked as the program requires."""
        return inputs.process(self, args, kwargs)

    def _adapt_flat_args(self, flat_args: list[Any], in_spec: Any, input: Any) -> list[Any]:
        return inputs.adapt(self, flat_args, in_spec, input)

    @_Signed
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out_spec = self.module_call_graph[0].signature.out_spec
        if torch_fx.is_fx_symbolic_tracing():
            flat = inputs.traced(self, args, kwargs)
            return pytree.tree_unflatten(engine.run(self, self.graph, tuple(flat)), out_spec)
        if torch.compiler.is_dynamo_compiling():
            flat = inputs.compiled(self, args, kwargs)
            return pytree.tree_unflatten(
                type(self._fxpress_runnable).forward(self, *flat), out_spec
            )
        flat = self.process_forward_inputs(*args, **kwargs)
        if self._run_with_interpreter:
            outputs = engine.run(self, self.graph, tuple(flat))
        else:
            outputs = type(self._fxpress_runnable).forward(self, *flat)
        return pytree.tree_unflatten(outputs, out_spec)

    def __getstate__(self) -> dict[str, Any]:
        self.graph_signature  # noqa: B018  (computes it)
        return super().__getstate__()

    def _dispatch_modules(
        self, redirected_call_indices: dict[str, str], consts_targets: set[str]
    ) -> None:
        dispatch_modules(self, redirected_call_indices, consts_targets, InterpreterModuleDispatcher)

    def finalize(self) -> None:
        """Check the graph, and drop attributes that were computed from the graph before an edit."""
        self._forget_derived()
        self.graph.lint()

    def _print_graph(self) -> None:
        for fqn, module in self.named_modules():
            print(fqn + ":")
            if isinstance(getattr(module, "graph", None), torch.fx.Graph):
                print(module.graph)


def log_cuts(cuts: list[tuple[torch.fx.Node, list[str], int]]) -> None:
    for node, paths, dropped in cuts:
        log.warning(
            "nn_module_stack fqns %s at node %s do not form a stack! dropping last %d entries",
            paths,
            node,
            dropped,
        )


engine.register_forward(InterpreterModule.__dict__["forward"], dispatches=False, counts=False)
engine.register_forward(
    InterpreterModuleDispatcher.__dict__["forward"], dispatches=True, counts=True
)


@operation("unflatten", lambda made, module, *_, **__: _sizes(made, module))
def unflatten(
    module: ExportedProgram,
    flat_args_adapter: torch_export.FlatArgsAdapter | None = None,
    *,
    share_state: bool = False,
    device: torch.device | str | None = None,
    progress: Progress = False,
    check_guards: bool = True,
) -> UnflattenedModule:
    """Return an exported program as the tree of modules that it was traced from.

    The modules have the names and the state of the original modules, and run on fxpress's engine.

    Stands in for `torch.export.unflatten`.

    Args:
        module: the program, which is not changed.
        flat_args_adapter: adapts inputs of another structure to the program's structure.
        share_state: use the program's own tensors instead of copies.
        device: the device of the copies; None: the devices of the program's tensors.
        progress: True to show the progress of copying state, or a function of (done, total, what).
        check_guards: check the inputs against all guards of the program, not only ranges.

    Raises:
        ValueError: the program has a backward signature.
        RuntimeError: a node has no `nn_module_stack`, or a module with a preserved signature needs
            a value that its callers do not pass.
        AssertionError, KeyError: the program contradicts its signature.
        UnsupportedError: two inputs of the program are constants of the same name.
        TypeError: `progress` is neither a bool, None nor a function.
        ImportError: `progress` needs a package that is not installed.

    Example:
        >>> from fxpress.unflatten import unflatten
        >>> made = unflatten(program)
        >>> [name for name, _ in made.named_children()]
        ['0', '1']
        >>> torch.allclose(made(x), model(x))
        True
    """
    if not isinstance(module, ExportedProgram):
        warnings.warn(f"unflatten expects an ExportedProgram, got {type(module)}", stacklevel=3)
    check_progress(progress)
    program = torch_export.without_effect_tokens(module)
    unflattened = UnflattenedModule.__new__(UnflattenedModule)
    options = (share_state, device, progress)
    unflattened._assemble(
        program, flat_args_adapter, *options, drop_dead_code=True, check_guards=check_guards
    )
    return unflattened
