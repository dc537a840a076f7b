"""What the catalog says of the server, of captured tables, of their types.

In: an SQL connection. Out: tables of the model. Reads only.
`source`, `check` and `snapshot` may import it.
"""
