"""Turns events of the binlog into transactions of changes: row images, and which table a row is of.

In: events. Out: changes of the model.
`source` imports it.
"""
