"""The format of program files, and a reader that does not import torch.

Read `names` (of records), `package` (the reader), `fields` (JSON), then the rest.
"""
