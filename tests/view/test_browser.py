"""Our page, and the page of Model Explorer with our graphs, in headless Chromium."""

from __future__ import annotations

import contextlib
import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
import torch
from torch import nn
from torch.export import export

import fxpress.view
from fxpress._tools.view.page import page_of
from fxpress._tools.view.show import FRAME
from fxpress._tools.view.sources import source_of_file
from tests.support.command_line import dynamic_program
from tests.support.ports import free_port
from tests.view.hostile import hostile_copy

pytestmark = pytest.mark.browser("drives Chromium, which draws by software")

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "view.png"
SOFTWARE = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")
SIZE = {"width": 1000, "height": 640}
FONTS = "https://fonts.gstatic.com/"
WAIT = 60_000  # milliseconds that anything may take
SETTLED = 1500  # milliseconds for what moves to come to rest
ICON = 42  # pixels from the middle of a layer's name to the icon that expands it
TOLERANCE = 0.02  # of the pixels' brightness, on average
SERVE = """
import json, sys
from model_explorer import config, visualize_from_config
from fxpress.view import data, graphs_of
path, port = sys.argv[1:]
made = config()
made.graphs_list.append(json.dumps({"graphs": graphs_of(path)}))
made.model_sources.append({"url": "graphs://model/0"})
for title, overlay in data.overlays(path).items():
    made.add_node_data(title, json.dumps(overlay), model_name="model")
visualize_from_config(made, port=int(port), no_open_in_browser=True)
"""


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).unflatten(-1, (6, 8)).transpose(1, 2).chunk(3, 1)
        made = nn.functional.scaled_dot_product_attention(*parts)
        return self.out(made.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(16, 32), activation, nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Known(nn.Module):
    def __init__(self, *activations: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 16)
        self.layers = nn.ModuleList(Block(activation) for activation in activations)
        self.head = nn.Linear(16, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def _without_paths(source: Path, target: Path) -> None:
    """Write a file like another whose stack traces do not say where this machine has its files."""
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as made:
        for name in archive.namelist():
            made.writestr(name, archive.read(name).replace(__file__.encode(), b"model.py"))


class Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.neg().neg()


def _with_more_nodes(source: Path, target: Path, number: int) -> None:
    """Write a file like that of `Chain`, whose second operator is repeated."""
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as made:
        for name in archive.namelist():
            text = archive.read(name)
            if name.endswith("models/model.json"):
                document = json.loads(text)
                graph = document["graph_module"]["graph"]
                node, value = json.dumps(graph["nodes"][1]), json.dumps(graph["tensor_values"]["x"])
                more = [
                    node.replace('"neg_1"', f'"neg_{i}"').replace('"neg"', f'"neg_{i - 1}"')
                    for i in range(2, number)
                ]
                graph["nodes"].append("MORE")
                graph["tensor_values"]["MORE"] = 0
                text = json.dumps(document).replace('"MORE"', ", ".join(more), 1).encode()
                values = ", ".join(f'"neg_{i}": {value}' for i in range(2, number))
                text = text.replace(b'"MORE": 0', values.encode())
            made.writestr(name, text)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("files")
    ids = torch.zeros(2, 5, dtype=torch.int64)
    for name, activations in (
        ("model", (nn.GELU(), nn.GELU())),
        ("changed", (nn.GELU(), nn.SiLU())),
    ):
        torch.export.save(export(Known(*activations), (ids,)), folder / "whole.pt2")
        _without_paths(folder / "whole.pt2", folder / f"{name}.pt2")
    return folder / "model.pt2", folder / "changed.pt2"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("FXPRESS_CHROMIUM") or shutil.which("chromium")
    assert chromium, "Debian's package chromium is not installed"
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", *SOFTWARE]
        )
        yield made
        made.close()


class Window:
    """A page in the browser, and what its console says."""

    def __init__(self, browser: Any) -> None:
        self.page = browser.new_page(viewport=SIZE)
        self.page.set_default_timeout(WAIT)
        self.messages: list[str] = []
        self.page.route(lambda url: url.startswith("http") and not _is_local(url), _abort)
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))
        self.page.on("dialog", self._dismiss)

    def _note(self, message: Any) -> None:
        is_font = message.location.get("url", "").startswith(FONTS)
        if message.type in ("error", "warning") and not is_font and "WebGL" not in message.text:
            self.messages.append(f"{message.type}: {message.text}")

    def _dismiss(self, dialog: Any) -> None:
        self.messages.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def panes(self) -> list[dict[str, Any]]:
        """The contents of each pane, as in the page's address."""
        (data,) = parse_qs(urlparse(self.page.url).query)["data"]
        panes: list[dict[str, Any]] = json.loads(data)["uiState"]["paneStates"]
        return panes

    def wait_until(self, holds: Callable[[list[dict[str, Any]]], bool]) -> None:
        for _ in range(WAIT // 100):
            with contextlib.suppress(KeyError):
                if holds(self.panes()):
                    return
            self.page.wait_for_timeout(100)
        raise AssertionError(self.panes())

    def shows(self, text: str) -> bool:
        """Whether an element with a text becomes visible."""
        self.page.get_by_text(text, exact=True).locator("visible=true").first.wait_for()
        return True

    def find(self, text: str, label: str) -> None:
        """Search for a text, and select the last result with a label."""
        self.page.get_by_placeholder("Search nodes/layers by regex").first.fill(text)
        results = self.page.locator(".search-results-container")
        results.get_by_text(label, exact=True).last.click(modifiers=["Alt"])

    def clear_search(self) -> None:
        """Let the results go that lie over the graph."""
        self.page.get_by_placeholder("Search nodes/layers by regex").first.fill("")
        self.page.wait_for_timeout(SETTLED)

    def middle(self) -> tuple[float, float]:
        """The middle of the first pane."""
        canvas = self.page.locator("canvas").first.bounding_box()
        return canvas["x"] + canvas["width"] / 2, canvas["y"] + canvas["height"] / 2


def _is_local(url: str) -> bool:
    return urlparse(url).hostname == "localhost"


def _abort(route: Any) -> None:
    route.abort()


@pytest.fixture
def window(browser: Any) -> Iterator[Window]:
    made = Window(browser)
    yield made
    made.page.close()


@contextlib.contextmanager
def served(file: Path) -> Iterator[str]:
    """The address of Model Explorer's page with the graphs of a file."""
    command = [sys.executable, "-u", "-c", SERVE, str(file), str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = (re.search(r"http://localhost:\d+/\?\S+", line) for line in process.stdout)
            yield next(match[0] for match in found if match)
        finally:
            process.terminate()


def opened(window: Window, address: str) -> None:
    window.page.goto(address)
    window.page.locator("mat-icon.expand-all").wait_for()
    window.wait_until(lambda found: len(found) == 1)
    window.page.wait_for_timeout(SETTLED)


def test_one_program(window: Window, files: tuple[Path, Path]) -> None:
    with served(files[0]) as address:
        opened(window, address)
        for name in ("bytes of state", "bytes of results", "FLOPs", "kind of operator"):
            assert window.shows(name)
        assert not window.panes()[0]["deepestExpandedGroupNodeIds"]
        window.find("scaled_dot", "scaled_dot_product_attention")
        window.wait_until(lambda panes: panes[0]["selectedNodeId"].startswith("node "))
        assert window.panes()[0]["deepestExpandedGroupNodeIds"]  # the layers around it
        for text in ("aten.scaled_dot_product_attention.default", "float32[2, 2, 5, 8]"):
            assert window.shows(text)
        before = window.panes()[0]["deepestExpandedGroupNodeIds"]
        window.page.locator("mat-icon.expand-all").click()
        window.wait_until(lambda panes: len(panes[0]["deepestExpandedGroupNodeIds"]) > len(before))
        assert window.messages == []


def test_a_layer_is_expanded(window: Window, files: tuple[Path, Path]) -> None:
    with served(files[0]) as address:
        opened(window, address)
        # The page draws the layer "layers" in the middle of its canvas.
        x, y = window.middle()
        window.page.mouse.click(x - ICON, y)
        expanded = ["layers___group___"]
        window.wait_until(lambda panes: panes[0]["deepestExpandedGroupNodeIds"] == expanded)
        assert window.messages == []


def test_a_long_chain_without_modules(window: Window, tmp_path: Path) -> None:
    """Model Explorer's own cut of large layers overflows its stack on this graph."""
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    for _ in range(12_000):
        node = graph.call_function(torch.ops.aten.neg.default, (node,))
    graph.output((node,))
    module = torch.fx.GraphModule({}, graph)
    torch.export.save(export(module, (torch.ones(2),)), tmp_path / "long.pt2")
    with served(tmp_path / "long.pt2") as address:
        opened(window, address)
        window.find("^neg_11000$", "neg")
        window.wait_until(lambda panes: panes[0]["selectedNodeId"] == "node 11000")
        assert window.panes()[0]["deepestExpandedGroupNodeIds"] == ["11,001 to 11,250___group___"]
        assert window.messages == []


def test_names_are_no_markup(window: Window, tmp_path: Path) -> None:
    torch.export.save(dynamic_program(), tmp_path / "model.pt2")
    hostile_copy(tmp_path / "model.pt2", tmp_path / "hostile.pt2")
    with served(tmp_path / "hostile.pt2") as address:
        opened(window, address)
        window.page.locator("mat-icon.expand-all").click()
        window.find("linear", "linear")
        window.page.wait_for_timeout(SETTLED)
        assert window.page.locator("img[onerror]").count() == 0
        assert window.messages == []


def written(window: Window, target: Path, *files: Path) -> Any:
    """Write the page about files, open it, and return it."""
    fxpress.view.write_page(target, *files)
    window.page.goto(target.as_uri())
    return window.page


def test_names_in_a_page_are_no_markup(window: Window, tmp_path: Path) -> None:
    torch.export.save(dynamic_program(), tmp_path / "model.pt2")
    hostile_copy(tmp_path / "model.pt2", tmp_path / "hostile.pt2")
    page = written(window, tmp_path / "page.html", tmp_path / "hostile.pt2", tmp_path / "model.pt2")
    opening = "e => { e.forEach((each) => each.show()); return e.length; }"
    while page.locator("details:not([open])").evaluate_all(opening):
        pass
    assert page.get_by_text("<script>alert(1)</script>").count() > 20
    created = page.evaluate(
        "[...new Set([...document.body.querySelectorAll('*')].map(e => e.tagName))]"
    )
    assert {*created} <= {
        *("H1", "H2", "H3", "H4", "SECTION", "DIV", "P", "SPAN", "A", "DL", "DT", "DD", "INPUT"),
        *("TABLE", "THEAD", "TBODY", "TR", "TH", "TD", "DETAILS", "SUMMARY"),
    }
    addresses = page.evaluate("[...document.links].map(e => e.getAttribute('href'))")
    assert all(re.fullmatch(r"#(node|module)(-\d+)+", each) for each in addresses)
    assert window.messages == []


def test_injected_code_does_not_run(
    window: Window, files: tuple[Path, Path], tmp_path: Path
) -> None:
    page = written(window, tmp_path / "page.html", files[0])
    inserted = """() => {
        document.body.append(Object.assign(document.createElement("script"), {text: "alert(1)"}));
        document.body.insertAdjacentHTML("beforeend", "<img src=x onerror=alert(1)>");
    }"""
    page.evaluate(inserted)
    page.wait_for_timeout(SETTLED)
    assert window.messages
    assert all("Content Security Policy" in each for each in window.messages)


def test_a_page(window: Window, files: tuple[Path, Path], tmp_path: Path) -> None:
    page = written(window, tmp_path / "page.html", *files)
    assert page.title() == "model.pt2, changed.pt2"
    assert page.get_by_text("They do not compute the same.").is_visible()
    page.get_by_placeholder("Search nodes").fill("SCALED_dot")
    found = page.locator(".found a")
    assert found.count() == 4  # two layers of two programs
    found.first.click()
    node = page.locator(".node[open]")
    for text in ("float32[2, 2, 5, 8]", "getitem", "model.py"):
        node.get_by_text(text).first.wait_for()
    node.get_by_role("link", name="transpose_1", exact=True).click()  # a user
    page.locator(".node[open] > summary", has_text="aten.transpose.int").wait_for()
    page.go_back()
    page.locator(".operator", has_text="aten.gelu.default").first.click()
    page.locator(".file").first.get_by_role("link", name="gelu_1", exact=True).click()
    gelu = page.locator(".node[open]", has=page.locator("summary", has_text="gelu_1"))
    gelu.get_by_role("link", name="layers.1.mlp.1", exact=True).click()
    page.locator("summary:focus", has_text="torch.nn.modules.activation.GELU").wait_for()
    page.locator(".difference").get_by_role("link", name="silu").click()
    page.locator(".node[open] > summary", has_text="aten.silu.default").wait_for()
    assert window.messages == []


def test_a_page_on_paper(window: Window, files: tuple[Path, Path], tmp_path: Path) -> None:
    page = written(window, tmp_path / "page.html", files[0])
    module = page.locator(".module > summary", has_text="qkv").first
    node = page.locator(".node > summary", has_text="aten.gelu.default").first
    assert not module.is_visible()
    page.pdf()
    page.emulate_media(media="print")
    assert module.is_visible()
    assert not node.is_visible()
    assert window.messages == []


# The words in cells of tables that are on two lines, except names that fill more than a window.
BROKEN_WORDS = """[...document.querySelectorAll("th, td")].flatMap(cell => {
  const range = document.createRange(), found = [];
  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (cell.textContent.length < 40 && texts.nextNode()) {
    for (const word of texts.currentNode.data.matchAll(/\\S+/g)) {
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      const lines = [...range.getClientRects()].map(line => line.top);
      if (new Set(lines).size > 1) found.push(word[0]);
    }
  }
  return found;
})"""


def test_a_page_fits_a_narrow_window_and_a_dark_one(
    window: Window, files: tuple[Path, Path], tmp_path: Path
) -> None:
    page = written(window, tmp_path / "page.html", *files)
    back = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(back) == "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(back) != "rgb(255, 255, 255)"
    page.set_viewport_size({"width": 400, "height": 800})
    page.get_by_placeholder("Search nodes").fill("gelu")
    page.locator(".found a").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    assert page.evaluate(BROKEN_WORDS) == []
    assert window.messages == []


def test_a_page_in_a_frame_of_a_notebook(
    window: Window, files: tuple[Path, Path], tmp_path: Path
) -> None:
    frame = FRAME.format(html.escape(page_of([source_of_file(files[0], "model.pt2")])), 600)
    (tmp_path / "notebook.html").write_text(f"<!DOCTYPE html><base href='/'>{frame}")
    window.page.goto((tmp_path / "notebook.html").as_uri())
    page = window.page.frame_locator("iframe")
    page.get_by_placeholder("Search nodes").fill("gelu")
    page.locator(".found a").first.click()
    page.locator(".node[open]").get_by_role("link", name="linear_2", exact=True).click()
    page.locator(".node[open] > summary", has_text="aten.linear.default").wait_for()
    assert window.messages == []


def test_a_page_of_100_000_nodes_opens_within_seconds(window: Window, tmp_path: Path) -> None:
    torch.export.save(export(Chain(), (torch.ones(2),)), tmp_path / "short.pt2")
    _with_more_nodes(tmp_path / "short.pt2", tmp_path / "long.pt2", 100_000)
    session = window.page.context.new_cdp_session(window.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # of the processor
    page = written(window, tmp_path / "page.html", tmp_path / "long.pt2")
    metrics = session.send("Performance.getMetrics")["metrics"]
    assert next(each["value"] for each in metrics if each["name"] == "TaskDuration") < 3
    page.get_by_placeholder("Search nodes").fill("neg_99999")
    page.locator(".found a").first.click()
    page.locator(".node[open] dd", has_text="aten.neg.default").wait_for()
    assert window.messages == []


def test_picture(window: Window, files: tuple[Path, Path]) -> None:
    """The page of a known model looks as the picture; FXPRESS_NEW_PICTURES=1 replaces it."""
    from PIL import Image, ImageChops, ImageStat

    with served(files[0]) as address:
        opened(window, address)
        window.find("scaled_dot", "scaled_dot_product_attention")
        window.wait_until(lambda panes: panes[0]["selectedNodeId"] != "")
        window.clear_search()
        shot = window.page.screenshot()
    made = Image.open(io.BytesIO(shot)).convert("L")
    if os.environ.get("FXPRESS_NEW_PICTURES"):
        colors = Image.open(io.BytesIO(shot)).convert("RGB").quantize(64)
        colors.save(PICTURE, optimize=True)
    stored = Image.open(PICTURE).convert("L")
    assert stored.size == made.size
    small = tuple(side // 4 for side in made.size)  # fonts differ in their edges
    difference = ImageChops.difference(stored.resize(small), made.resize(small))
    assert ImageStat.Stat(difference).mean[0] / 255 < TOLERANCE
