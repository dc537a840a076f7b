"""Keeps copies in Delta Lake tables: the store, their log, their maintenance.

In: typed batches. Out: one commit a batch that carries its position.
Opened by `spark_apply.model.store` alone.
"""
