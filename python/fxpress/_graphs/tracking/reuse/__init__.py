"""Trace identical layers once: later calls repeat what the first call added to the graph.

`calls.call` is the entry point. `structure` describes everything that a call can read. The first
call with a description is traced, while `journal` and `recording` record Dynamo's changes. Calls
with an equal description repeat the changes (`template`, `instantiate`). A call whose trace might
differ from the recorded one is traced.
"""
