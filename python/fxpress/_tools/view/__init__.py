"""Shows programs. Showing the programs of a file does not need torch.

`entry` has the functions of `fxpress.view`. In reading order: `nodes` (the viewed graph), `graphs`
(reads it from a program's text; `namespaces` and `ranges` give it layers), `sources` (programs in
a file or in memory), `flops` and `kinds` (of operators), `matching` and `comparison` (of two
programs), `overlays` and `data` (over nodes), `report` and `page` (the page; its script is in
`templates`), `show` (opens the page), `model_explorer` (writes graphs as plain data).
"""
