"""Kafka's wire protocol: connections, requests, record batches. No topic and no transaction is decided here.

In: bytes to send. Out: answers of brokers.
All of `sinks` may import it.
"""
