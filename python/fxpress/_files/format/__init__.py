"""Describes the files (.pt2) of exported programs, and reads these files without importing torch.

Modules in reading order: `names`, `package` (a zip reader), `fields` (for JSON), then the others.
"""
