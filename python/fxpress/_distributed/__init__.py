"""Cuts programs into stages, stores the stages, and runs them in several processes.

`stages` cuts a program into stages and writes them, `checkpoint` reads ranges of weights and
converts checkpoints, and `pipeline` loads stages and runs them.
"""
