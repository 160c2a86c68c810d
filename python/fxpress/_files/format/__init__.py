"""Describes the format of program files, and reads them without importing torch.

Read `names` (of records), `package` (the zip reader), `fields` (JSON), then the other modules.
"""
