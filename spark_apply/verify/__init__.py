"""Whether copies are what the source holds, and why a key is what it is.

In: rows of the source and of the stores. Out: keys and columns that differ; nothing is written.
Commands alone import it.
"""
