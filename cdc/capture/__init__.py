"""The one loop of a connector, from start-up to acknowledgement: `session` is the loop, `pipeline` retries it.

In: a source, a snapshotter, a sink by their seams. Out: committed Kafka transactions, acknowledged positions.
Commands, `snapshot` and `sinks.check` may import it; it knows no driver.
"""
