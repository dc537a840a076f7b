"""Reads what triggers have written down: for databases that have no log to read.

In: a database's URL. Out: transactions of `cdc.model.change`; acknowledgements of committed positions. A folder below
for each kind of database. Named in `cdc.config.registry`; `snapshot` imports their sessions, catalogs and change logs.
"""
