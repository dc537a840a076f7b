"""Reads PostgreSQL's logical WAL.

In: a connection URL and a slot. Out: transactions of `cdc.model.change`; acknowledgements of committed positions.
Named in `cdc.config.registry`; `snapshot` imports its session, catalog and slot.
"""
