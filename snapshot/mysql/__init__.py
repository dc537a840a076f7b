"""MySQL's and MariaDB's tables as they were: views whose place in the log is known, rows in key order.

In: a URL, tables, progress. Out: chunks, windows and single rows as bytes, and what each view has seen.
`cdc` opens it by name; it imports `connectors.mysql` and what all snapshots share.
"""
