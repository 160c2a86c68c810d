"""Capture callables as graphs with Dynamo, for `fxpress.functional_export`."""
