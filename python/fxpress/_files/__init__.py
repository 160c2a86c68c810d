"""Converts programs to bytes and back, from the format's names up to entire archives.

`format` does not need torch: it has names of records, schema facts, limits, and a zip reader.
`remote` reads byte ranges of a URL. `tensors` copies tensors. `serde` converts programs to bytes
and back; `archive` writes and reads files that contain such bytes.
"""
