"""Put fxpress in torch's place for the whole process, and take it out again.

What is put there is never fxpress's own object but a *stand-in* made for the purpose. Its identity
is how ``uninstall`` tells a name that some module took from torch meanwhile from one that was
imported from fxpress on purpose.

Holders are looked for in the namespaces of the modules in ``sys.modules`` and nowhere else: a
class attribute, a closure or a container keeps what it has, and so does a module that another
thread is importing at this very moment. A stand-in that outlives its installation in such a place
does what torch does.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import importlib
import inspect
import logging
import os
import pkgutil
import sys
import threading
import types
from abc import ABCMeta
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast

from fxpress import _native
from fxpress._blocks import attribute_block
from fxpress._errors import UnsupportedError

Policy: TypeAlias = Literal["raise", "torch"]
_Function: TypeAlias = Callable[..., Any]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_log = logging.getLogger("fxpress")


class _Entry(NamedTuple):
    """One name of torch and what replaces it; nothing is imported before ``install``."""

    module: str  # dotted name of the torch module that defines it, as in sys.modules
    name: str  # its name there
    provider: tuple[str, str]  # our module, and the name in it


# A new room adds its names here. Importers inside torch need no rows: those already loaded hold
# the object that the identity scan looks for, and those loaded later read the patched source.
# Exception classes do not belong here: `except` ignores __subclasscheck__.
_ROOMS: list[_Entry] = [
    _Entry(torch_module, name, (our_module, name))
    for torch_module, our_module, names in (
        (
            "torch.fx.passes.split_module",
            "fxpress.split_module",
            (
                "split_module",
                "split_module_simple",
                "Partition",
                "_decompose_size_nodes",
                "_make_lite_graph_module",
                "_get_attr_from_qualname",
                "_detect_dependencies",
                "_clone_nodes_into_partitions",
                "_build_stitching_graph",
            ),
        ),
        (
            "torch.export.unflatten",
            "fxpress.unflatten",
            (
                "unflatten",
                "UnflattenedModule",
                "InterpreterModule",
                "InterpreterModuleDispatcher",
                "_SubmoduleBase",
                "_disable_interpreter",
                "_assign_attr",
                "_inplace_buffer_and_input_mutations",
                "_root_module_type",
                "_fix_nn_module_stacks",
                "_is_prefix",
                "_compute_accessor",
                "_check_graph_equivalence",
                "_add_spec",
                "_generate_flatten",
                "_generate_flatten_spec",
                "_generate_unflatten",
                "_get_submodule",
                "_add_submodule",
                "_call_name",
                "_is_call_name",
                "_ModuleFrame",
                "_SubmoduleEntry",
                "_outline_submodules",
                "_reorder_submodules",
                "_IVals",
                "_copy_graph_attrs",
                "_deduplicate_modules",
                "_sink_params",
            ),
        ),
        (
            "torch._export.serde.serialize",
            "fxpress.serialize",
            (
                "serialize",
                "deserialize",
                "canonicalize",
                "_canonicalize_graph",
                "ExportedProgramSerializer",
                "ExportedProgramDeserializer",
                "GraphModuleSerializer",
                "GraphModuleDeserializer",
                "LazyMap",
                "GraphState",
                "register_extension",
                "_registered_extension_types",
                "_get_schema_from_target",
                "EnumEncoder",
                "_bytes_to_dataclass",
                "_dataclass_to_dict",
                "_dict_to_dataclass",
                "_resolve_schema_cls",
                "_to_json_bytes",
                "_int_to_sympy_int",
                "_print_sympy",
                "_sympy_int_to_int",
                "_reverse_map",
                "_symbol_index",
                "deserialize_device",
                "deserialize_scalar_type",
                "deserialize_size",
                "deserialize_storage_offset",
                "deserialize_stride",
                "serialize_range_constraints",
                "serialize_sym_bool",
                "serialize_sym_float",
                "serialize_sym_int",
                "serialize_tensor_meta",
                "serialize_torch_artifact",
                "deserialize_torch_artifact",
                "get_triton_kernel_and_cache_entry",
                "is_metadata_matched",
            ),
        ),
        (
            "torch._export.serde.dynamic_shapes",
            "fxpress.serialize",
            ("_dump_dynamic_shapes", "_load_dynamic_shapes"),
        ),
        (
            "torch._dynamo.guards",
            "fxpress._capture.guard_function",
            ("build_guard_function",),
        ),
        (
            "torch._dynamo.guards",
            "fxpress._capture.guard_origin",
            ("get_verbose_code_part",),
        ),
        (
            "torch._dynamo.functional_export",
            "fxpress.functional_export",
            (
                "_dynamo_graph_capture_for_export",
                "dynamo_graph_capture_for_export",
                "create_fx_graph_from_captured_output",
                "_suggest_or_raise_constraint_violation",
                "_normalize_shuffle_graph",
                "normalize_graph_module",
                "clean_export_root",
                "clean_export_root_string",
                "clean_nn_module_stack_and_source_fn",
                "post_process_error_msg",
                "ModuleToTrace",
                "DynamoGraphTransformer",
                "InputProcessor",
                "DynamoBytecodeFlatten",
                "DynamoBytecodeUnflatten",
                "_DynamoBytecodeCodeGen",
            ),
        ),
        (
            "torch._dynamo.variables.nn_module",
            "fxpress.nn_module",
            (
                "NNModuleVariable",
                "UnspecializedNNModuleVariable",
                "UnspecializedBuiltinNNModuleVariable",
                "FSDPManagedNNModuleVariable",
                "record_nn_module_stack",
                "initialize_lazy_module",
                "guard_to_detect_forward_monkeypatching",
            ),
        ),
        ("torch.export", "fxpress.archive", ("save", "load")),
        (
            "torch.export.pt2_archive._package",
            "fxpress.archive",
            (
                "PT2ArchiveReader",
                "PT2ArchiveWriter",
                "is_pt2_package",
                "load_pt2",
                "load_weights_to_pt2_contents",
                "package_pt2",
            ),
        ),
        ("torch._inductor.package.package", "fxpress._archive.compiled", ("load_package",)),
    )
    for name in names
]


class _StandInType(ABCMeta):
    """The metaclass of class stand-ins, and of nothing else: a door that nobody lives in.

    To call a stand-in, or to derive from it, is to call or derive from a real class: objects and
    subclasses outlive the installation, pickle, and have the metaclass they expect.
    (An ABCMeta, so that deriving from a stand-in and from an ABC is no metaclass conflict.)
    """

    _fxpress_installation: _Installation  # knows which of the two is in force
    _fxpress_ours: type
    _fxpress_original: type
    _fxpress_either: tuple[type, ...]  # what an instance of either is an instance of

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwds: Any
    ) -> Any:
        if not any(isinstance(base, _StandInType) for base in bases):
            return super().__new__(mcls, name, bases, namespace, **kwds)
        real = tuple(b._fxpress_current() if isinstance(b, _StandInType) else b for b in bases)
        return types.new_class(name, real, kwds, lambda body: body.update(namespace))

    def _fxpress_current(cls) -> type:
        torchs = cls._fxpress_installation.policy_here() is None
        return cls._fxpress_original if torchs else cls._fxpress_ours

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._fxpress_current()(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls._fxpress_either)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls._fxpress_either)


@functools.cache
def _stand_in_type(meta: type) -> Any:
    """The metaclass of stand-ins for the classes of a metaclass."""

    class Door(_StandInType, meta):  # type: ignore[misc]
        # Past what the metaclass does to new classes, such as to list them or to let nothing derive
        # from them: a stand-in is not one of its classes.
        def __new__(mcls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
            if any(isinstance(base, _StandInType) for base in bases):
                return super().__new__(mcls, name, bases, body)
            return type.__new__(mcls, name, bases, body)

        def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> None:
            type.__init__(cls, name, bases, body)

    made: Any = _StandInType if issubclass(_StandInType, meta) else Door
    # Nobody finds a stand-in class under its own name, which is that of our class: pickle that one.
    copyreg.pickle(
        made, lambda cls: (pkgutil.resolve_name, (f"{cls.__module__}:{cls.__qualname__}",))
    )
    return made


def _class_stand_in(installation: _Installation, ours: type, original: type) -> type:
    body = {
        "__module__": ours.__module__,
        "__qualname__": ours.__qualname__,
        "__doc__": ours.__doc__,
        "_fxpress_installation": installation,
        "_fxpress_ours": ours,
        "_fxpress_original": original,
        "_fxpress_either": (original,) if issubclass(ours, original) else (ours, original),
    }
    stand_in: Any = _stand_in_type(type(ours))(ours.__name__, (ours,), body)
    with contextlib.suppress(ValueError):  # a class whose constructor is in C may have none
        stand_in.__signature__ = inspect.signature(ours)  # inspect sees only our __call__
    return cast(type, stand_in)


def _function_stand_in(
    installation: _Installation, entry: _Entry, ours: _Function, original: _Function
) -> _Function:
    @functools.wraps(ours)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        policy = installation.policy_here()  # once: another thread may change it during the call
        if policy is None:
            return original(*args, **kwargs)
        try:
            return ours(*args, **kwargs)
        except UnsupportedError as error:
            if policy == "raise":
                raise
            _log.warning("%s.%s: left to torch: %s", entry.module, entry.name, error, stacklevel=2)
        # Outside the handler, so that an exception of torch's does not carry ours as context.
        with installation.left_to_torch():
            return original(*args, **kwargs)

    # Where it stands is where it is found again: by pickle, and by code that fx generates.
    stand_in.__module__ = entry.module
    stand_in.__qualname__ = entry.name
    return stand_in


@dataclass(frozen=True, eq=False)
class _Patch:
    """An entry of the table made concrete."""

    ours: Any  # fxpress's own object
    original: Any  # what the source held before us
    stand_in: Any  # what it holds while we are installed


class _Here(threading.local):
    left = False  # this thread is in a call that was left to torch


class _Installation:
    """What is installed in one process: the open leases, and the patches they share.

    What has an effect on others happens in native code, at once: in the middle of it there is no
    other thread, no signal and no fork.
    """

    def __init__(self, rooms: Iterable[_Entry]) -> None:
        self._native = _native.Installation()
        self._here = _Here()
        self._rooms = rooms
        self._lock = threading.RLock()
        self._known: dict[_Entry, _Patch] = {}  # ever made; used again, so that stand-ins are few
        self._announced = False  # that FXPRESS_DISABLE is set

    def acquire(self, policy: Policy) -> None:
        self._native.acquire(self._prepare(policy))

    def release(self) -> None:
        """Give back the newest lease that no context manager holds."""
        self._native.release_newest()

    def block(self, policy: Policy) -> _native.InstalledBlock:
        """A lease for the length of a `with` block, or of each call of what it decorates."""
        return _native.InstalledBlock(
            self._native,
            functools.partial(self._prepare, policy),
            functools.partial(self._decorate, policy),
        )

    def _decorate(self, policy: Policy, function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self.block(policy):
                return function(*args, **kwargs)

        return call

    @property
    def policy(self) -> Policy | None:
        """In force now; None while torch is itself."""
        return self._native.policy

    @property
    def leases(self) -> int:
        """How many are open."""
        return self._native.leases

    def _prepare(self, policy: Policy) -> _native.Prepared:
        """What a lease needs; nobody but us sees anything of it yet."""
        if policy not in ("raise", "torch"):
            raise ValueError(f'on_unsupported must be "raise" or "torch", not {policy!r}')
        if os.environ.get("FXPRESS_DISABLE", "").strip().lower() in ("1", "true", "yes"):
            if not self._announced:
                self._announced = True
                _log.info("FXPRESS_DISABLE is set: torch is left as it is")
            return policy, [], []
        # Importing under the lock could deadlock with a module that calls install() when imported.
        loaded = self._load()
        with self._lock:
            found = [(entry, vars(source)[entry.name], ours) for entry, source, ours in loaded]
            patches = [self._concrete(*each) for each in found if each[1] is not each[2]]
        return policy, [(patch.original, patch.stand_in) for patch in patches], _caches()

    def policy_here(self) -> Policy | None:
        """The policy for a call of this thread; None for torch."""
        return None if self._here.left else self.policy

    def left_to_torch(self) -> _native.Block:
        """For the length of a call every stand-in is torch's, in this thread.

        What torch's original calls by the names that we replaced has to be torch's too: halves of
        both do not fit together.
        """
        return attribute_block(self._here, "left", True)

    def forget_lock(self) -> None:
        """A forked child starts with a lock that no thread of its own holds."""
        self._lock = threading.RLock()

    def _load(self) -> list[tuple[_Entry, types.ModuleType, Any]]:
        """Import both sides of every entry that this torch has and that its version allows."""
        loaded = []
        for entry in self._rooms:
            # By its full name: torch.export.unflatten, the attribute, is a function.
            source = importlib.import_module(entry.module)
            if entry.name in vars(source):
                provider, name = entry.provider
                try:
                    ours = getattr(importlib.import_module(provider), name)
                except UnsupportedError as error:
                    _log.info("%s.%s stays torch's: %s", entry.module, entry.name, error)
                    continue
                loaded.append((entry, source, ours))
        return loaded

    def _concrete(self, entry: _Entry, original: Any, ours: Any) -> _Patch:
        known = self._known.get(entry)
        if known and original is known.stand_in:  # saved by somebody, and put back later
            original = known.original
        if known and known.original is original and known.ours is ours:
            return known
        if isinstance(ours, type) and isinstance(original, type):
            stand_in: Any = _class_stand_in(self, ours, original)
        else:
            stand_in = _function_stand_in(self, entry, ours, original)
        self._known[entry] = patch = _Patch(ours, original, stand_in)
        return patch


_installation = _Installation(_ROOMS)


def _caches() -> list[Callable[[], object]]:
    """Names stand for other objects now: Dynamo must not remember what they stood for."""
    tracking: Any = sys.modules.get("fxpress.nn_module")
    return [] if tracking is None else tracking.caches()


def _forget_lock() -> None:
    _installation.forget_lock()


os.register_at_fork(after_in_child=_forget_lock)


def install(*, on_unsupported: Policy = "raise") -> None:
    """Replace torch's functions and classes by fxpress's, in the whole process.

    Every module-level name that holds one of them is rebound: in the torch module that defines
    it (``torch.fx.passes.split_module``), and in every loaded module that imported it, under
    whatever name. Modules imported later get fxpress's from torch. Names held elsewhere (class
    attributes, closures, containers) stay as they are.

    Calls nest: the first one patches and the last ``uninstall`` restores. With the environment
    variable ``FXPRESS_DISABLE`` set to ``1``, ``true`` or ``yes`` at the first call, torch is left
    as it is.

    Args:
        on_unsupported: what a replaced function does where fxpress raises
            :class:`fxpress.UnsupportedError`: ``"raise"`` lets it through; ``"torch"`` logs a
            warning (logger ``fxpress``) and calls torch's original, with all of torch itself in
            this thread until it returns. The latest call that is still open decides, in all
            threads. Calls to fxpress's own modules always raise.

    Raises:
        ValueError: ``on_unsupported`` is neither of the two.
        ImportError: a module of fxpress or torch does not load; nothing has been changed.
    """
    _installation.acquire(on_unsupported)


def uninstall() -> None:
    """Take back the latest open :func:`install`; the last one gives torch its own objects back.

    Names that modules took from torch meanwhile are restored too; names imported from fxpress
    are left alone.

    Raises:
        RuntimeError: no ``install()`` is open. (A ``with installed()`` does not count: only its
            own exit ends it.)
    """
    _installation.release()


def installed(*, on_unsupported: Policy = "raise") -> _native.InstalledBlock:
    """Install fxpress for the length of a ``with`` block: :func:`install`, then :func:`uninstall`.

    Process-wide like them: other threads see it too. Blocks may nest and overlap in any order;
    each ends exactly its own installation.

    Args:
        on_unsupported: as for :func:`install`.

    Raises:
        ValueError, ImportError: as :func:`install`, on entry.
    """
    return _installation.block(on_unsupported)


def is_installed() -> bool:
    """Whether torch's names stand for fxpress's now; False where ``FXPRESS_DISABLE`` left them."""
    return _installation.policy is not None
