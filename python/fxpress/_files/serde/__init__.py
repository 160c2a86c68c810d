"""The Python side of `fxpress.serialize`: code that runs once per operator, program or file.

Read `program` (`serialize`), `operators`, then `reading` (`deserialize`), `values`, `targets`.
"""
