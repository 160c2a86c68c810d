"""Implements the command `fxpress`; `app` has its options."""
