"""What `cdc demo` shows: a shop that changes rows, copies and views that follow, a repair.

In: running servers. Out: steps that are told, and whether everything agreed.
`cdc.cli` and tests may import it.
"""
