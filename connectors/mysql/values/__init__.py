"""Turns bytes of a value into the server's text, and that into JSON text, type by type.

In: bytes of the log or text of a SELECT. Out: JSON text. No I/O.
`rows`, `catalog`, `source` and `snapshot` may import it.
"""
