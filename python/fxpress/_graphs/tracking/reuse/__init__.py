"""Trace identical layers once: later calls repeat the changes of the first one to the graph.

`calls` is the entry point for calls of tracked modules. A call is described (`structure`), traced
while Dynamo's changes are recorded (`journal`, `recording`), and repeated for a call with an equal
description (`template`, `instantiate`). In doubt a call is traced.
"""
