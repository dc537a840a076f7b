"""What takes the place of Kafka for a connector without it: a position in a file, and a sink that keeps no rows.

In: states and events. Out: the same on a disk.
`cdc.library` and `sinks` may import it; it knows no source and no loop.
"""
