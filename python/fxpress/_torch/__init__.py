"""Isolate torch's private names: no other package uses them.

Other packages import torch's private names from here, most of them under names of fxpress. The
modules are `fx` (graphs, nodes, generated code), `tables` (tables for the native code in `csrc/fx`
and `csrc/engine`), `export` (exported programs, unflattening), `serde`, `archive`, `capture`,
`tracking`, `versions` (differences between releases of torch), and others.
"""
