"""The forms of records beside plain JSON: with schemas, in Avro, with a schema registry. Bytes to bytes, no I/O.

`schema` and `tables` say what a table's records are; `connect_json`, `avro` and `json_schema` write that down;
`records` puts it around an encoder; `reading` reads records back. A registry is asked by `sinks.client`.
"""
