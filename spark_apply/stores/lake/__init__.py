"""Holds what lake tables (Delta, Iceberg) share: columns, keys, the MERGE of a batch, histories, table properties.

In: a batch, a table's schema and properties. Out: SQL for Spark, documents.
`stores.delta` and `stores.iceberg` may import it; views read its rows.
"""
