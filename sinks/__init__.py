"""Where events go: Kafka, by transactions of our own client; or a file of JSON lines.

In: records and positions from the loop. Out: committed transactions, what topics hold read back, findings of checks.
`cdc` opens a sink by name; `spark_apply` and `cdc` neighbours go through names and seams of `cdc.model`.
"""
