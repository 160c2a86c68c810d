"""All that knows torch's private names.

Each name is looked up here, under one that says what it is for: `fx` (graphs, nodes, generated
code), `tables` (of the native code of `csrc/fx`), `export` (exported programs, unflattening),
`serde`, `archive`, `engine`, `capture`, `tracking`, and `versions` (how releases of torch differ).
"""
