"""Decompose exported programs. Equal operator calls are traced once; the trace is a template."""
