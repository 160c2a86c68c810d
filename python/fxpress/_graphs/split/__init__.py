"""Cuts graphs into submodules: `split_module` is the entry point; `csrc/split` does the work."""
