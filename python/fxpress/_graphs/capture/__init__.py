"""Capture callables as graphs, for export."""
