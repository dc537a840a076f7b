"""PostgreSQL's tables as they were: COPY in key order, under the slot's view or one of its own.

In: a URL, tables, progress. Out: chunks, windows and single rows as bytes, and what each view has seen.
`cdc` opens it by name; it imports `connectors.postgres` and what all snapshots share.
"""
