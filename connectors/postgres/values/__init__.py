"""Turns the server's text into JSON text, type by type, as docs/values.md says.

In: text as the type's output function prints it. Out: JSON text. No I/O.
All of `connectors.postgres` and `snapshot` may import it.
"""
