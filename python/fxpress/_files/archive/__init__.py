"""Writes and reads archives: zip files with programs, their weights and example inputs.

Modules in reading order: `package`, `writer`, `payloads`, `load`, `reader`, `contents`, `storages`.
"""
