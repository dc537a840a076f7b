"""Keeps embedded full-text indexes: folders and links, documents, what is noted of them.

In: batches of rows. Out: an index for each table, which any process of the machine can search.
`spark_apply.model.store` opens it by name.
"""
