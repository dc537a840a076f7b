"""The sink that is a DuckDB file: each captured table as it is at the source, and the position beside it.

In: events and states, as for Kafka. Out: tables that SQL reads. A commit is one transaction of DuckDB's.
It knows the library's Arrow types and DuckDB, and nothing of Kafka or of a source.
"""
