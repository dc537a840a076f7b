"""Knows topics: their names, their configuration, and when either changes; `records` reads what they hold.

In: names of tables and connectors. Out: topics as they must be; positions, signals, logs.
`sinks.kafka`, `sinks.check` and commands may import it.
"""
