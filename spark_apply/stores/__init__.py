"""Holds a file or folder for each kind of derived store; `spark_apply.model.store` is their seam.

In: typed batches. Out: rows in tables and documents in indexes, guarded by position.
Named in `spark_apply.model.store.STORES`; nothing else imports a store.
"""
