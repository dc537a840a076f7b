"""Takes one micro-batch into the copies, in a transaction that the store commits.

In: typed rows as COPY text, in a staging table. Out: rows of the copies, waiting events, and the rows that are refused.
Imported by the store; views in PostgreSQL ask `refused_rows` what an error is about.
"""
