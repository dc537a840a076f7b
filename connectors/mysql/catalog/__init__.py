"""Asks the server and information_schema about captured tables. Reads only.

In: an SQL connection. Out: tables of the model, findings on the server.
`rows`, `source`, `check` and `snapshot` may import it.
"""
