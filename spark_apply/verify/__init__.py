"""Compares copies with the source, and explains why a key has its value.

In: rows of the source and of the stores. Out: keys and columns that differ; nothing is written.
Commands alone import it.
"""
