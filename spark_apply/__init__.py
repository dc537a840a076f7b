"""Folds a connector's topics into derived stores: tables, search indexes, views. Needs the extra `spark`.

In: apply.yaml or views.yaml, topics. Out: stores that are complete up to a position, views as topics of their own.
`cdc` opens it by name; it imports `cdc` alone, and not sources or sinks.
"""
