"""Produces in transactions: batches of partitions, each once and in order, committed together.

In: records. Out: Kafka transactions, by the coordinator.
`sinks.kafka` imports it.
"""
