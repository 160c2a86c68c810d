"""What `fxpress.export` is made of."""
