"""Each server of the stack: how it is had, started, found again and asked whether it is up.

In: a folder, settings. Out: a running server and its URL.
`cdc.dev.stack` starts them together; tests and `bench` start single ones.
"""
