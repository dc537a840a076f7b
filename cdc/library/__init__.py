"""What `import cdc` gives a Python program: changes without Kafka, and the topics as Arrow, tables and DataFrames.

In: a database's URL, or a connector's file. Out: Python values typed by the schema, Arrow batches, DataFrames.
Nothing imports it but `cdc` itself, when one of its names is first used; it reaches other packages by the registry.
"""
