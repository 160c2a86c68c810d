"""Programs as bytes, from the format up to whole archives.

`format` does not need torch: names of records, schema facts, limits, and a reader of zip files.
`remote` reads byte ranges of a URL. `tensors` copies tensors. `serde` converts programs to bytes
and back; `archive` writes and reads the files that contain these bytes.
"""
