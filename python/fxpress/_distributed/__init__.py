"""Programs that run in several processes.

`stages` cuts a program into stages and writes them, `checkpoint` reads and converts weights by
ranges, and `pipeline` loads stages and runs them.
"""
