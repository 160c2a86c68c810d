"""Programs in memory.

In the order of imports: `engine` runs graphs, `unflatten` rebuilds trees of modules, `export` makes
modules of programs, `trace` traces calls, `decompose` decomposes programs, `tracking` tracks
modules for Dynamo, `capture` captures callables, `split` cuts graphs, and `partition` decides where
to cut.
"""
