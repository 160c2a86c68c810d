"""The parts of `fxpress.export`.

`unlift` makes the module of an exported program, with the state of `state` and the guards of
`guards`.
"""
