"""PostgreSQL without its log: what triggers have written into a schema of the connector's own.

In: a database's URL. Out: transactions of `cdc.model.change`. `triggers` writes the functions, `change_log` keeps what
they write to, `rounds` puts it into the order of commits; catalog, values and sessions are `connectors.postgres`'s.
"""
