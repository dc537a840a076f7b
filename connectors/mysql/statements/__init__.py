"""Reads the statements of the binlog: what they do to tables, and which may have changed rows unseen. Pure.

In: the text of a statement. Out: what it does to which tables.
`rows` and `source` import it.
"""
