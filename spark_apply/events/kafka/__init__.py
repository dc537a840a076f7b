"""Reads Kafka: clients, topics, offsets, records on the driver, streams by Spark, the schema topic.

In: apply.yaml's source. Out: records, and what the broker says of topics.
All of `spark_apply` above its model may import it.
"""
