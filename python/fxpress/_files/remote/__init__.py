"""Read byte ranges of files at a URL. No other code opens URLs.

Read `urls` (requests), `remote_file` (one file at a URL), `ranges` (local and remote files).
"""
