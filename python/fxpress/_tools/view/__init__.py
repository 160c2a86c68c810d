"""Shows programs. Showing the programs of a file does not need torch.

`entry` has the functions of `fxpress.view`. `nodes` defines a graph. `graphs` reads a graph from a
program's text; `namespaces` and `ranges` group its nodes. `sources` finds programs in a file or in
memory. `flops` and `kinds` describe operators. `matching` and `comparison` compare two programs.
`overlays` and `data` compute data over nodes. `report` and `page` write the page, whose script is
in `templates`. `show` opens the page. `model_explorer` writes graphs as plain data.
"""
