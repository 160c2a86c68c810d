"""Cuts an exported program into stages, each of which is an exported program."""
