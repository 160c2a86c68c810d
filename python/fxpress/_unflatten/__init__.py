"""The parts of `fxpress.unflatten`.

`source` says what the native pass needs to know about a program, `modules` are the classes of what
it makes, `frames` and `passes` its steps on their own, for those who call torch's by name.
"""
