"""Reads byte ranges of files at a URL. Only this package opens URLs.

Modules in reading order: `urls`, `remote_file`, `ranges`.
"""
