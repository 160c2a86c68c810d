"""Implements the Python part of `fxpress.serialize`: code that runs once per operator or file.

Read `program` (`serialize`), `operators`, then `reading` (`deserialize`), `values`, `targets`.
"""
