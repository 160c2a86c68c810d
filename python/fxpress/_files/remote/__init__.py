"""Byte ranges of files behind a URL: the only code that opens one.

Read `urls` (opening), `remote_file` (one file), `ranges` (many ranges of one file), `url_path`.
"""
