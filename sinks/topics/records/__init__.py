"""Reads what topics hold: positions, descriptions of tables, signals, the audit log, what was verified.

In: names of topics. Out: records, read back whole, by key, or followed as they come.
`sinks.kafka`, `sinks.check` and commands may import it.
"""
