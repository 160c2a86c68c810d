"""Cut graphs into submodules: `split_module` is the entry point, and calls `csrc/split`."""
