"""What people run and look at.

`inspect` reads files without torch, `view` makes pages and graphs of programs, `cli` is the command
line, and `doctor` checks an installation.
"""
