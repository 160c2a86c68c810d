"""Archives of programs: zip files with a graph, its weights, constants and example inputs.

Read `package` (`save`), `writer`, `payloads`, then `load`, `reader`, `contents`, `storages`.
"""
