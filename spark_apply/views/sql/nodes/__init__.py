"""Divides a view into nodes that are kept as rows of their own, each with the units that are computed together. Pure.

In: blocks. Out: the nodes of a plan.
`spark_apply.views.sql` alone imports it.
"""
