"""Define the variables by which Dynamo tracks modules, for `fxpress.nn_module`."""
