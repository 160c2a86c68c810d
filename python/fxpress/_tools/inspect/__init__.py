"""Reads what a file holds, without torch: neither weights are read nor pickles opened.

The commands enter at `summary.summarize`, `nodes.find_nodes`, `hashes.hash_programs` and
`verification.check_file`. Read `modules` and `arguments`, then `program`, then these.
"""
