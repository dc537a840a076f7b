"""Keeps indexes of an OpenSearch server: connection, indexes and their fields, bulk requests, notes, failures.

In: batches of rows. Out: an index for each table, behind an alias.
`spark_apply.model.store` opens it by name.
"""
