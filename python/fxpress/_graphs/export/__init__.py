"""The parts of `fxpress.export`.

`tracing` makes what a trace is made of ours. `unlift` makes the module of a program, with the state
of `state` and the guards of `guards`.
"""
