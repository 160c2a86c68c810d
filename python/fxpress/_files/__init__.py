"""Programs as bytes, from the format up to whole archives.

`format` does not need torch: names of records, schema facts, limits, and the package reader.
`remote` reads byte ranges of a URL. `tensors` copies tensors. `serde` converts programs to bytes
and back; `archive` writes and reads files of them.
"""
