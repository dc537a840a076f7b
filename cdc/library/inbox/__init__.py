"""Gives a consumer each record once, in its own database: what is new of topics, and how far it has come.

In: topics, a connection of any driver. Out: batches of records, each in a transaction of the connection.
`cdc.library.api` imports it.
"""
