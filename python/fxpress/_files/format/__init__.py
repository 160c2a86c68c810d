"""Facts about files of programs, and the reader of packages, without torch.

Read `names` (of records), `package` (the reader), `fields`, then the rest.
"""
