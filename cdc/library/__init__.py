"""What `import cdc` gives a Python program: changes without Kafka, and the topics as Arrow, tables and DataFrames.

In: a database's URL, a connector's file, or topics. Out: Python values typed by the schema, Arrow batches, DataFrames,
and records that take effect in a database once.
Nothing imports it but `cdc` itself, when one of its names is first used; it reaches other packages by the registry.
"""
