"""Tables of databases that are captured by triggers, as they were: a file for each kind of database.

In: a URL, tables, progress. Out: chunks, windows and single rows as bytes, and what each view has seen.
`cdc` opens it by name; it imports `connectors.triggers` and what all snapshots share.
"""
