"""The dump connection, and whether the log still holds what a position needs.

In: positions. Out: packets of the binlog; verdicts on gaps.
`source` and `check` may import it.
"""
