"""What a user wrote, as frozen dataclasses, and names turned into parts.

In: YAML files and `type:` names. Out: `ConnectorConfig`, `ApplyConfig`, openers, findings of `cdc check`.
Imports `cdc.model` alone; every other package but `cdc.machine` may import it.
"""
