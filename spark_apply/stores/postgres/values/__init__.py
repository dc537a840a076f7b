"""Derived columns in PostgreSQL: types, text of COPY, documents, equality of keys, letters of an encoding.

In: columns and keys of a copy's table. Out: SQL and Spark expressions.
Imported by all that makes SQL for copies, also for views that are kept in PostgreSQL.
"""
