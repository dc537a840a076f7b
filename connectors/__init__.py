"""Sources: a folder for each, which follows its log and reads its catalog; `captured_tables`, `json_values` are shared.

In: a connector's file. Out: transactions of changes whose values are the server's text, positions, findings of checks.
`cdc` opens a source by name; `snapshot` imports its own source's folder; sources know neither sinks nor each other.
"""
