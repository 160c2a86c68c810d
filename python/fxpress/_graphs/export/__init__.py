"""The module of an exported program, for `fxpress.export`.

`unlift` creates the module, with the state from `state`; `engine` runs it on the native engine.
Tracing is in `_graphs/trace`, guards are in `_graphs/unflatten/guards.py`.
"""
