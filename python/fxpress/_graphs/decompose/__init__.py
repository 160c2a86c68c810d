"""Decompose exported programs by templates; `fxpress.decompose` is the public module."""
