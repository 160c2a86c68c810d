"""Track modules for Dynamo; see `fxpress.nn_module`."""
