"""MySQL and MariaDB: the binlog.

In: a connection URL and a position. Out: transactions of `cdc.model.change`.
Named in `cdc.config.registry`; `snapshot` imports its session, catalog, values and positions.
"""
