"""What a connector is asked for while it runs: by users, and by itself where rows changed without an event.

In: records of the signal topic. Out: tables and rows to read, pauses, answers and their audit.
The loop, `cdc.cli`, `cdc.monitor` and `sinks` may import it; it imports `cdc.capture.snapshots`.
"""
