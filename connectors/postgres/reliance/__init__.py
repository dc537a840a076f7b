"""Notes what a connector relies on in the catalog, beside its position, and compares it: tables, partitions, types.

In: the catalog, the entries of a position. Out: entries, refusals, tables whose rows may have changed without events.
`source`, `check` and the source by triggers may import it.
"""
