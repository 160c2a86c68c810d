"""Programs as bytes, from the format up to whole archives.

`format` needs no torch: names of records, schema facts, limits, and the package reader. `remote`
reads ranges of a URL. `tensors` copies tensors. `serde` converts programs to bytes and back, and
`archive` writes and reads files of them.
"""
