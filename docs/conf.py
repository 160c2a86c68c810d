"""The site of the documentation.

`sphinx-build -W -n docs site` builds it, and `-b doctest` runs the examples in docstrings. The
guides are run by `tests/examples`.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for example.py

project = "fxpress"
html_title = "fxpress"
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
exclude_patterns = ["plots"]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]

myst_heading_anchors = 4

default_role = "code"  # docstrings have the quotes of Markdown
add_module_names = False
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
napoleon_use_rtype = False

# Types of torch and of Python, which have no page here, and what public names are made of.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|collections|contextlib|os|pathlib|sympy)\..*"),
    ("py:class", r"fxpress\._.*"),
    ("py:class", r"(ExportGraphSignature|GraphModule|Digraph|Node|Overlay|dict\[str)"),
    ("py:exc", r"(UserError|ConstraintViolationError|ObservedAttributeError)"),
]

doctest_global_setup = """

import fxpress, torch
from example import *
enter_folder()
"""
doctest_global_cleanup = "leave_folder()"

copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
