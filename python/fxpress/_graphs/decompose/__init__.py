"""Decompositions of exported programs by templates; `fxpress.decompose` is the façade."""
