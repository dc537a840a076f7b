"""Reads views.yaml: the forms of a view, what they read, and what is published by which definition.

In: views.yaml, the schema topic, the last state. Out: planned views, in the order of what they read.
`spark_apply.views` alone imports it.
"""
