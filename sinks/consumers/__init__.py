"""Consumer groups on a connector's topics: where they stand, what is unread, when they have committed.

In: groups and topics by name, records of Kafka's topic of offsets. Out: lag by group and partition.
`cdc.monitor` and commands open it by name; it imports `sinks.client` alone.
"""
