"""The only package that uses torch's private names.

It looks up each name, and gives it a name of fxpress. The modules are `fx` (graphs, nodes,
generated code), `tables` (tables for the native code in `csrc/fx` and `csrc/engine`), `export`
(exported programs, unflattening), `serde`, `archive`, `capture`, `tracking`, and `versions`
(differences between releases of torch).
"""
