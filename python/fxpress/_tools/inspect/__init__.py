"""Read the contents of a file without torch. Weights are not read, and pickles not opened.

The commands call `summary.summarize`, `nodes.find_nodes`, `hashes.hash_programs` and
`verification.check_file`. Read `modules`, `arguments` and `program` first, which these four use.
"""
