"""The command `fxpress`."""
