"""The Python side of `fxpress.serialize`: code that runs once for an operator, program or file."""
