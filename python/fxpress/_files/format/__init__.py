"""Describes the format of program files, and reads them without importing torch.

Modules in reading order: `names`, `package` (a zip reader), `fields` (for JSON), then the others.
"""
