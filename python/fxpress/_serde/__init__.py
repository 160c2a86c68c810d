"""The Python side of `fxpress.serialize`: what is asked once for each operator, program or file."""
