"""Reads byte ranges of files at a URL. Only this package opens URLs.

Read `urls` (requests), `remote_file` (one file at a URL), `ranges` (local and remote files).
"""
