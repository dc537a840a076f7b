"""Reads a view's SQL: parsed, names resolved, clauses checked, FROM taken apart. Pure.

In: text and columns of tables. Out: blocks, each one SELECT over sources.
`spark_apply.views.sql` and the forms of a view may import it.
"""
