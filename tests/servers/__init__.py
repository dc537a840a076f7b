"""Servers for tests that `cdc dev` does not start: other versions of Kafka, MySQL whose data are copied."""
