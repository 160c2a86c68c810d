"""Converts programs to bytes and back, and writes and reads files.

`format` contains names of records, schema facts, limits and a zip reader; it does not need torch.
`remote` reads byte ranges of a URL. `tensors` copies tensors. `serde` converts programs to bytes
and back; `archive` writes and reads files that contain such bytes.
"""
