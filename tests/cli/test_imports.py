"""Files of libraries: errors name the options that help, `--import` and `--allow-pickle`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import export

import fxpress
from fxpress._tools.cli import app
from fxpress._tools.cli.loading import import_module, text_of
from fxpress._tools.inspect.hashes import hash_programs
from fxpress._tools.inspect.summary import summarize
from fxpress._tools.inspect.verification import check_file
from tests.support.command_line import assert_without_torch, run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
OPERATOR = """
import torch
from scaling_of_tests import FACTOR

@torch.library.custom_op("tests_of_imports::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR

@scaled.register_fake
def _(x):
    return torch.empty_like(x)
"""


def error_of(*arguments: str) -> str:
    """Run a command that fails; return its error, which is a line."""
    done = run(*arguments)
    assert done.returncode == 2, (arguments, done.stdout, done.stderr)
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) <= 200
    return done.stderr


def commands(path: Path, folder: Path) -> list[list[str]]:
    """Return each command that loads a file."""
    return [
        ["convert", str(path), str(folder / "new.pt2")],
        ["split", str(path), "--stages", "2", "--by", "bytes", "-o", str(folder / "stages")],
    ]


@pytest.mark.slow("many processes that import torch")
def test_operators_of_a_file(tmp_path: Path) -> None:
    module = tmp_path / "operators_of_tests.py"
    module.write_text(OPERATOR)
    (tmp_path / "scaling_of_tests.py").write_text("FACTOR = 2")
    import_module(str(module))
    import_module(str(module))  # is known already

    class Model(torch.nn.Module):
        def __init__(self, bias: float) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
            self.bias = bias

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.tests_of_imports.scaled(self.second(self.first(x))) + self.bias

    paths = [tmp_path / "one.pt2", tmp_path / "other.pt2"]
    for path, bias in zip(paths, (1.0, 2.0), strict=True):
        fxpress.save(export(Model(bias), (torch.ones(1, 2),)), path)
    wanted = (
        "`torch.ops.tests_of_imports.scaled.default` is not registered; use --import MODULE, "
        "which registers operators of `tests_of_imports`"
    )
    further = ["--import", str(module)]
    for command in commands(paths[0], tmp_path):
        assert wanted in error_of(*command)
        assert run(*command, *further).returncode == 0
    assert run("hash", str(paths[0]), *further).stdout.split()[0] == fxpress.graph_hash(
        fxpress.load(paths[0])
    )
    assert wanted in error_of("diff", *map(str, paths))
    differ = json.loads(run("diff", *map(str, paths), *further, "--json").stdout)
    ((place),) = differ["differences"]
    assert (place["first"], place["second"]) == ("1.0", "2.0")
    assert wanted in run("verify", "--load", str(paths[0])).stdout
    assert "note" not in run("verify", "--load", str(paths[0]), *further).stdout


@pytest.mark.slow("processes that import torch and transformers")
def test_classes_of_transformers(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    settings = {"n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": 16, "n_positions": 8}
    settings |= {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    model = GPT2LMHeadModel(GPT2Config(**settings)).eval()
    other = copy.deepcopy(model)
    other.transformer.ln_f.eps = 0.5
    paths = [tmp_path / "one.pt2", tmp_path / "other.pt2"]
    tokens = torch.ones(1, 4, dtype=torch.long)
    for path, each in zip(paths, (model, other), strict=True):
        fxpress.save(export(each, (tokens,), strict=False), path)
    module = "transformers.modeling_outputs"
    wanted = (
        f"`{module}.CausalLMOutputWithCrossAttentions` is not registered; use --import {module}"
    )
    split = commands(paths[0], tmp_path)[1]
    assert wanted in error_of(*split)
    assert run(*split, "--import", module).returncode == 0
    differ = run("diff", *map(str, paths), "--weights", "--json")  # from the bytes
    (place,) = json.loads(differ.stdout)["differences"]
    assert (place["path"].split(".")[-2], place["second"]) == ("eps", "0.5")


@pytest.mark.slow("processes that import torch and torchao")
def test_tensors_of_torchao(tmp_path: Path) -> None:
    pytest.importorskip("torchao", reason="no torchao", exc_type=ImportError)
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    models = [torch.nn.Sequential(torch.nn.Linear(32, 32)).eval() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    with torch.no_grad():
        models[1][0].weight[0, 0] = 9
    paths = [tmp_path / "one.pt2", tmp_path / "other.pt2"]
    for path, model in zip(paths, models, strict=True):
        quantize_(model, Int8WeightOnlyConfig(version=2))
        fxpress.save(export(model, (torch.ones(1, 32),)), path)
    operators = summarize(paths[0]).programs[0].operators
    assert "torch.ops.export.access_subclass_inner_tensor.default" in operators
    assert dict(hash_programs(paths[0]))["model"] == fxpress.graph_hash(
        fxpress.load(paths[0], allow_pickle=True)
    )
    assert_without_torch("hash", str(paths[0]))
    assert not any("library" in fault.text for fault in check_file(paths[0]))
    weights = ["diff", *map(str, paths), "--weights", "--json"]
    for command in (commands(paths[0], tmp_path)[0], weights):
        error = error_of(*command)
        assert "Int8Tensor`; use --import torchao" in error
        assert "--allow-pickle, which may run any code" in error
    assert run(*commands(paths[0], tmp_path)[0], "--import", "torchao.quantization").returncode == 0
    done = run(*weights, "--allow-pickle")
    ((found),) = json.loads(done.stdout)["weights"]
    assert found["name"] == "0.weight"
    assert found["what"].startswith("qdata: ")
    assert found["absolute"] > 0
    assert app.run(["diff", str(paths[0]), str(paths[0]), "--weights", "--allow-pickle"]) == 0


class Own(torch.Tensor):
    """A tensor that only a pickle holds."""


def test_pickles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer("own", torch.ones(2).as_subclass(Own))
    program = export(model, (torch.ones(1, 2),))
    program.state_dict["own"] = torch.ones(2).as_subclass(Own)
    fxpress.save(program, tmp_path / "one.pt2")
    path = str(tmp_path / "one.pt2")
    assert app.run(["verify", "--load", path]) == 1
    said = capsys.readouterr().out
    assert f"is a pickle of `{__name__}.Own`; use --allow-pickle, which may run any code" in said
    assert app.run(["verify", "--load", "--allow-pickle", path]) == 0


def test_modules_that_fail(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    bad = tmp_path / "bad_module_of_tests.py"
    bad.write_text("raise RuntimeError('no\\nluck')")
    for module, said in (
        ("no.such.module", "ModuleNotFoundError: No module named 'no'"),
        (str(bad), "RuntimeError: no\n"),
        (str(tmp_path / "nowhere.py"), "FileNotFoundError"),
    ):
        for command in ("hash", "verify"):
            assert app.run([command, str(path), "--import", module]) == 2
            error = capsys.readouterr().err
            assert error.startswith(f"fxpress: --import {module}: ")
            assert said in error
            assert error.count("\n") == 1
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good_module_of_tests.py").touch()
    assert app.run(["hash", str(path), "--import", "good_module_of_tests", "--import", "json"]) == 0


def test_long_errors_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["inspect", f"{'x' * 300}.pt2"]) == 2
    assert len(capsys.readouterr().err) == 200
    assert app.run(["inspect", f"/{'x' * 200}/a.pt2"]) == 2
    assert capsys.readouterr().err == "fxpress: .../a.pt2: No such file or directory\n"


def test_texts_of_errors() -> None:
    from fxpress._files.serde.damage import NeedsPickleError, UnknownNameError

    for error, said in (
        (UnknownNameError("", "a.b.C"), "`a.b.C` is not registered; use --import a.b"),
        (UnknownNameError("", "C"), "use --import MODULE, which registers it"),
        (UnknownNameError("", "#own:op.x"), "use --import MODULE, which registers it"),
        (UnknownNameError("", "torch.ops.json.a.b"), "use --import json"),  # a library of the name
        (UnknownNameError("", "torch.ops..a.b"), "which registers operators of ``"),
        (NeedsPickleError("", "it"), "it is a pickle; use --allow-pickle"),
        (NeedsPickleError("", "it", "os.system"), "use --allow-pickle"),
        (NeedsPickleError("", "it", "a.b.C"), "use --import a.b, or --allow-pickle"),
        (ValueError("one\ntwo"), "one"),
    ):
        assert said in text_of(error)
        assert "two" not in text_of(error)
