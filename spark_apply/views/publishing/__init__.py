"""Writes what changes in views to Kafka, exactly once, and says where a job stands.

In: the outbox of a step. Out: a Kafka transaction, and a status that others read.
`spark_apply.views` alone imports it.
"""
