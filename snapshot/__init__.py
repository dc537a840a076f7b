"""What a table held before its log began, or holds while the log is followed: a folder for each source.

In: tables, and the progress that is committed. Out: chunks, windows and rows, each with what its view has seen.
`cdc` opens a snapshotter by name; what is shared is above the folders: `handover`, `key_ranges`, `parallel_readers`.
"""
