"""The only package that uses torch's private names.

It looks up each name, and defines a name of fxpress for it. The modules are `fx` (graphs, nodes,
generated code), `tables` (tables for the native code in `csrc/fx` and `csrc/engine`), `export`
(exported programs, unflattening), `serde`, `archive`, `capture`, `tracking`, `versions`
(differences between releases of torch), and others.
"""
