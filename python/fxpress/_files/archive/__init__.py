"""Writes and reads archives: zip files with programs, their weights and example inputs.

Read `package` (`save`), `writer`, `payloads`, then `load`, `reader`, `contents`, `storages`.
"""
