"""Changes to records: JSON text, keys, tombstones, schema versions, TOAST values filled in, dead letters.

In: changes and tables of `cdc.model`. Out: records (topic, key, value) for a sink; no order and no commit is decided
here. `cdc.capture`, `sinks`, `connectors` and `snapshot` may import it; it imports `cdc.rules` and what is below them.
"""
