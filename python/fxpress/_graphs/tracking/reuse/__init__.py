"""Layers that are alike are traced once: later calls repeat what the first ones did to the graph.

`calls` stands at the call of a tracked module. A call is described (`structure`), traced while it
is noted what Dynamo does (`journal`, `recording`), and repeated for a call with an equal
description (`template`, `stamp`). In doubt a call is traced.
"""
