"""The parts of `fxpress.unflatten`.

`source` collects the facts about a program that the native pass needs. `modules` has the classes of
the modules that it makes. `frames` and `passes` have its steps as separate functions, for callers
that use torch's by name.
"""
