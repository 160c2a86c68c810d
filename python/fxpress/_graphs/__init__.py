"""Run, rebuild, decompose, capture and split programs in memory.

In the order of imports: `engine` runs graphs, `unflatten` rebuilds trees of modules, `export`
creates modules from programs, `trace` speeds up traces, `decompose` decomposes programs, `tracking`
tracks modules for Dynamo, `capture` captures callables as graphs, `split` cuts graphs, and
`partition` decides where to cut.
"""
