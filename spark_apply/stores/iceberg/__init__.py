"""Keeps copies in Apache Iceberg tables: the store, their maintenance, their partitions.

In: typed batches. Out: one commit a batch that carries its position.
Opened by `spark_apply.model.store` alone.
"""
