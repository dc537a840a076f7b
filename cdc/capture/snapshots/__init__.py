"""Reading rows: how far a snapshot is, how fast it may be, and the incremental one, beside the log.

In: windows and rows of a `Snapshotter`, keys that the log has told. Out: what is to be written at a point of the log,
and the progress that is committed with it. The loop, commands and figures may import it; it knows no signal.
"""
