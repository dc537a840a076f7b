"""Knows topics: their names, their configuration, and what is read back from them.

In: names of tables and connectors. Out: topics as they must be; positions, signals, logs.
`sinks.kafka`, `sinks.check` and commands may import it.
"""
