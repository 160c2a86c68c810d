"""A torch that nobody has seen yet: some components work, and the others say one sentence.

Each program runs in a separate process, in which torch has been changed before fxpress is
imported: names are gone, have other arguments, or the release is unknown.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from fxpress._torch.probes import COMPONENTS

pytestmark = pytest.mark.slow("imports torch in separate processes")

START = """
import importlib, logging, sys
import torch, torch.export._trace, torch._export.serde.serialize, torch._dynamo.functional_export
import torch.fx.passes.split_module
torch.__version__ = torch.torch_version.TorchVersion("2.99.0")
"""

# What changes -> the components that cannot work then, and what the sentence names.
CHANGES = {
    "a function of torch.fx is gone": (
        "del torch.fx._utils.lazy_format_graph_code",
        set(COMPONENTS) - {"nn_module"},
        "lazy_format_graph_code",
    ),
    "a class of the reader of files has another name": (
        "import torch._weights_only_unpickler as w; w.Reader = w.Unpickler; del w.Unpickler",
        {"serialize", "archive", "state", "decompose", "pipeline", "checkpoint"},
        "Unpickler",
    ),
    "a capture takes other arguments": (
        "import torch._dynamo.convert_frame as c\n"
        "c.fullgraph_capture = lambda fn, args, kwargs=None, *, limits=None: None",
        {"functional_export"},
        "fullgraph_capture",
    ),
    "tracked modules have other methods": (
        "from torch._dynamo.variables import nn_module as n\n"
        "for name in ('tp_getattro_impl', 'var_getattr'):\n"
        "    if name in vars(n.NNModuleVariable):\n"
        "        n.NNModuleVariable.py_getattr = vars(n.NNModuleVariable)[name]\n"
        "        delattr(n.NNModuleVariable, name)",
        {"nn_module"},
        "lacks the methods of torch",
    ),
    "nodes have other fields": (
        "torch.fx.node._NodeBase = type('NodeBase', (), {})",
        set(COMPONENTS) - {"nn_module"},
        "'_args'",
    ),
}
# The part that is tied to libtorch is of another release: these components need it.
TIED = {"unflatten", "archive", "state", "decompose", "pipeline", "checkpoint"}

ASKED = """
import warnings
from fxpress import UnsupportedError
for name in {components}:
    try:
        importlib.import_module("fxpress." + name)
    except UnsupportedError as error:
        assert isinstance(error, ImportError)
        print(name, "|", str(error).replace(chr(10), " "))
    else:
        print(name, "| works")
"""

INSTALLED = """
import fxpress
from torch.fx.passes.split_module import split_module
logging.basicConfig(level="INFO")
module = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
with fxpress.installed(on_unsupported="torch"):
    split = torch.fx.passes.split_module.split_module(module, None, lambda node: 0)
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),), strict=True)
    saved = torch._export.serde.serialize.serialize(program)
    ours = torch.fx.passes.split_module.split_module.__module__
x = torch.ones(3, 2)
torch.testing.assert_close(split(x), module(x))
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )


def answers(program: str) -> tuple[dict[str, str], str]:
    """Return the result or error of each component after a program has run, and the log."""
    done = run(START + program + ASKED.format(components=COMPONENTS))
    assert done.returncode == 0, done.stderr
    lines = [line.partition(" | ") for line in done.stdout.splitlines() if " | " in line]
    return {name: said for name, _, said in lines}, done.stderr


def assert_these_components_are_lost(said: dict[str, str], change: str) -> None:
    _, lost, named = CHANGES[change]
    assert {name for name, text in said.items() if text != "works"} == lost | TIED
    for name in lost - TIED:
        assert said[name].startswith(f"fxpress.{name} does not work with torch 2.99.0: ")
        assert named in said[name]
    for name in TIED - lost:
        assert "fxpress was built for torch" in said[name]


def test_an_unknown_release_alone() -> None:
    said, _ = answers("")
    assert {name for name, text in said.items() if text != "works"} == TIED


# With other arguments of its own functions, torch's capture would not work either.
NO_CAPTURE = "a capture takes other arguments"


def test_components_of_a_torch_that_does_not_capture() -> None:
    said, _ = answers(CHANGES[NO_CAPTURE][0])
    assert_these_components_are_lost(said, NO_CAPTURE)


@pytest.mark.parametrize("change", sorted(CHANGES.keys() - {NO_CAPTURE}))
def test_install_leaves_to_torch_what_does_not_work(change: str) -> None:
    code, lost, _ = CHANGES[change]
    said, logged = answers(code + INSTALLED)
    for component in ("torch.fx.passes.split_module", "torch._dynamo.variables.nn_module"):
        ours = component.rpartition(".")[2]
        assert (f"{component} is not replaced" in logged) == (ours in lost)
    assert_these_components_are_lost(said, change)


GENERATOR = """
from torch.fx import graph
before = graph.CodeGen.generate_output
graph.CodeGen.generate_output = (
    lambda self, *args, **kwargs: before(self, *args, **kwargs) + "  # a new comment"
)
from fxpress.split_module import split_module
from torch.fx.passes.split_module import split_module as torch_split
module = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
ours, theirs = (each(module, None, lambda node: 0) for each in (split_module, torch_split))
assert "a new comment" in theirs.submod_0.code
assert ours.submod_0.code == theirs.submod_0.code, ours.submod_0.code
"""


def test_code_that_torch_writes_otherwise_is_left_to_it() -> None:
    done = run(START + GENERATOR)
    assert done.returncode == 0, done.stderr


KNOWN = """
import importlib, torch, fxpress._torch.tables as tables
del tables.immutable_list
try:
    importlib.import_module("fxpress.split_module")
except NameError as error:
    print("raised", error)
"""


def test_bugs_of_ours_with_a_known_torch_are_not_hidden() -> None:
    done = run(KNOWN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("raised")


EACH_TRACED = """
import torch._dynamo.utils
del torch._dynamo.utils.get_unique_name_wrt
import fxpress
from fxpress.functional_export import reuse_report
layers = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(4)])
x = torch.ones(3, 2)
with fxpress.installed(on_unsupported="torch"):
    made = torch.compile(layers, backend="eager")(x)
    kind = torch._dynamo.variables.nn_module.UnspecializedNNModuleVariable
    assert kind._fxpress_ours.__module__.startswith("fxpress")
torch.testing.assert_close(made, layers(x))
assert not reuse_report().calls
"""


def test_each_call_is_traced_where_instances_lack_a_name() -> None:
    done = run(START + EACH_TRACED)
    assert done.returncode == 0, done.stderr
