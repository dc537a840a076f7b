"""Turns bytes of pgoutput into changes of the model.

In: messages of the replication stream. Out: transactions, relations, rows. No I/O.
`source`, `slot` and `catalog` may import it.
"""
