"""The one loop of a connector, from start-up to commit and acknowledgement.

In: a source, a snapshotter, a sink by their seams. Out: committed Kafka transactions, acknowledged positions.
Commands, `snapshot` and `sinks.check` may import it; it knows no driver.
"""
