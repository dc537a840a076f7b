"""Turns topics into typed rows: parsing, the fold, histories, and the quarantine of poison records.

In: Kafka topics. Out: DataFrames of typed rows, quarantine entries. No store is written here.
`stores`, `job`, `rebuild`, `verify` may import it; it imports `model` and `spark`.
"""
