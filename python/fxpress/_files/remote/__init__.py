"""Byte ranges of files at a URL: the only code that opens URLs.

Read `urls` (opening), `remote_file` (paths, and one file), `ranges` (local and remote files).
"""
