"""Provides tools for users.

`inspect` reads files without torch, `view` writes pages and graphs of programs, `cli` is the
command line, `doctor` checks an installation, and `profile` measures fxpress's operations.
"""
