"""Views of programs, without torch for those in files.

`entry` has the functions of `fxpress.view`. In reading order: `nodes` (the graph as it is viewed),
`graphs` (reads it from a program's text; `namespaces` and `ranges` give it layers), `sources` (the
programs of a file or in memory), `flops` and `kinds` (of operators), `matching` and `comparison`
(of two programs), `overlays` and `data` (over nodes), `report` and `page` (the page; its
script is in `templates`), `show` (opens it), `model_explorer` (writes graphs as plain data).
"""
