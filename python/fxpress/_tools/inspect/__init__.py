"""Read the contents of a file without torch. Weights are not read, and pickles are not opened.

The commands call `summary.summarize`, `nodes.find_nodes`, `hashes.hash_programs` and
`verification.check_file`. To understand the source, start with the modules that these four use:
`modules`, `arguments` and `program`.
"""
