"""Expressions of views' SQL: which are taken, and how each is carried over from Spark to the engine.

In: expressions over resolved columns. Out: the engine's expressions, with the types that Spark gives them.
`for_engine` and `for_spark` are the two doors, for blocks as a whole.
"""
