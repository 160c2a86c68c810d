"""Byte ranges of files behind a URL: the only code that opens one.

Read `urls` (opening), `remote_file` (paths, and one file), `ranges` (files here or at URLs).
"""
