"""Writes a block as statements of the engine: the rows, what a change touches, when the clock changes it. Pure.

In: blocks and their units. Out: SQL.
`spark_apply.views.sql` alone imports it.
"""
