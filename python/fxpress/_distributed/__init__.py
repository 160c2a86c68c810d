"""Programs on many processes.

`stages` cuts a program into stages and writes them, `checkpoint` reads and converts weights by
ranges, and `pipeline` loads stages and runs them.
"""
