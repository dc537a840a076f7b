"""Protobuf: a table's messages, the text of their ``.proto`` file, and records as bytes. Pure.

In: schemas of `cdc.formats.schema`, typed JSON. Out: messages, text, bytes, and typed JSON again.
The formats of tables may import it, and who reads records back.
"""
