"""Implements the Python part of `fxpress.serialize`: code that runs once per operator or file.

Modules in reading order: `program`, `operators`, `reading`, `values`, `targets`, then the others.
"""
