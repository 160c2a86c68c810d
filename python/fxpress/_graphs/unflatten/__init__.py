"""The parts of `fxpress.unflatten`.

`source` collects the facts about a program that the native pass needs. `modules` defines the
classes of the modules that it builds. `frames` and `passes` define its steps as separate functions,
for callers of torch's functions of the same names.
"""
