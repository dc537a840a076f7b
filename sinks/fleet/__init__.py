"""A fleet's own topic, and a member's place in its group.

In: entries and states that members write, what Kafka's group protocol says. Out: who runs what, read back.
`cdc.fleet` and commands open it by name; it imports `sinks.topics` and `sinks.client`.
"""
