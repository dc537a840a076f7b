"""Holds the dump connection, and judges whether the log still has what a position needs.

In: positions. Out: packets of the binlog; verdicts on gaps.
`source` and `check` may import it.
"""
