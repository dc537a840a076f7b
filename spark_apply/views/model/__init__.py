"""Says how views read tables, and which values they have. Pure.

In: the types of columns. Out: ways of reading, types of the engine.
Every other room of `spark_apply.views` may import it.
"""
