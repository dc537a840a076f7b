"""Speaks Kafka's wire protocol: connections, requests, record batches. It decides about no topic or transaction.

In: bytes to send. Out: answers of brokers.
All of `sinks` may import it.
"""
