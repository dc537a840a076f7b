"""Reads and names checkpoints of streaming queries, and compares them with the topics.

In: a folder on any file system of Spark's. Out: the offsets that were applied.
`spark_apply.job` and `replay` may import it.
"""
