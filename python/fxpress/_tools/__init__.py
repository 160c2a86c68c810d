"""What people run and look at.

`inspect` reads files without torch, `view` makes pages and graphs of programs, `cli` is the command
line, `doctor` checks an installation, and `profile` shows what operations did.
"""
