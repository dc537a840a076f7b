"""Patterns of views.yaml, written as the SQL that they stand for. Pure.

In: the elements of a pattern and the columns of its table. Out: one SELECT in Spark's SQL, which is planned, run and
verified as any other view's. `spark_apply.views` alone imports it.
"""
