"""The bytes of an event: the row, its key, and the envelope around them, as docs/events.md has it.

In: tables and rows of `cdc.model`, what `cdc.rules` leaves of them. Out: JSON of keys, rows and whole events; pure.
All of `cdc.encode`, and connectors that write rows themselves, may import it; it knows no topic's contents.
"""
