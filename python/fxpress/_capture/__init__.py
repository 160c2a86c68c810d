"""Capture of callables as graphs, for export."""
