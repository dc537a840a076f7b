"""Copies as PostgreSQL has them: their catalog, their tables, and what other hands have done to these.

In: tables as they are wanted, on a given cursor. Out: tables as they are, or what keeps them from it.
Imported by the store and by what folds batches in; nothing here commits or reads Kafka.
"""
