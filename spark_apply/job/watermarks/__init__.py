"""Says up to where copies are complete: barriers of the source's positions, marks of copies, and who reads them.

In: position topics, offsets that were applied. Out: a mark in each copy.
`spark_apply.job`, `spark_apply.views` and commands that wait may import it.
"""
