"""How Dynamo tracks modules: see `fxpress.nn_module`."""
