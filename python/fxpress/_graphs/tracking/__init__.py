"""Define the variables with which Dynamo tracks modules; `fxpress.nn_module` exports them."""
