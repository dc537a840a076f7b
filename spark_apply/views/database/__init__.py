"""Computes views in PostgreSQL, beside the rows that they are made of: one transaction there takes all to a position.

In: batches of captured tables, plans of views. Out: what changes in each view, in the outbox, in the same transaction.
`spark_apply.views.job` alone imports it.
"""
