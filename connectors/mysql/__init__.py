"""Reads the binlog of MySQL and MariaDB.

In: a connection URL and a position. Out: transactions of `cdc.model.change`.
Named in `cdc.config.registry`; `snapshot` imports its session, catalog, values and positions.
"""
