"""Keeps copies in PostgreSQL tables whose readers see whole source transactions.

In: typed batches as COPY text. Out: one PostgreSQL transaction a batch.
Opened by `spark_apply.model.store` alone.
"""
