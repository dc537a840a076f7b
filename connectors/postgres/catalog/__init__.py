"""Asks the catalog about the server, captured tables and their types.

In: an SQL connection. Out: tables of the model. Reads only.
`source`, `check` and `snapshot` may import it.
"""
