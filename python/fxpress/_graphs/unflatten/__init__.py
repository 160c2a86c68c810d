"""Rebuild trees of modules, for `fxpress.unflatten`.

`source` collects the facts about a program that the native pass needs. `modules` defines the
classes of the modules that the pass builds. `frames` and `passes` define steps of the pass as
separate functions, for callers of torch's functions of the same names.
"""
