"""Facts about files of programs that need no torch, and the reader of packages.

Read `names` (of records), `package` (the reader), `fields`, then the rest.
"""
