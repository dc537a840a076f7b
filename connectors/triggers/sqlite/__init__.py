"""SQLite: one file, no server.

In: the file. Out: transactions of `cdc.model.change`. `change_log` writes the triggers, `catalog` describes tables,
`values` reads what the triggers have written.
"""
