"""Topics to typed rows: read, parsed, newest of each key, histories, what cannot be applied.

In: Kafka topics. Out: DataFrames of typed rows, quarantine entries. No store is written here.
`stores`, `job`, `rebuild`, `verify` may import it; it imports `model` and `spark`.
"""
