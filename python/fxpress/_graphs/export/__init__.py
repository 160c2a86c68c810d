"""Turn an exported program into a module, for `fxpress.export.module`.

`unlift` creates the module, `state` gives it the program's state, and `engine` runs it on the
native engine. The guards of the module come from `_graphs/unflatten/guards.py`.
"""
