"""The forms of records beside plain JSON: with schemas, in Avro, with a schema registry. Bytes to bytes, no I/O.

`schema` and `tables` say what a table's records are; `avro`, `json_schema` and `proto` write that down; `wires` puts it
around an encoder; `reading` reads records back. A registry is asked by `sinks.client`.
"""
