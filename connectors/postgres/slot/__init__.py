"""Keeps the log for a connector: publication, slot, the stream that acknowledges it, what it holds back.

In: positions. Out: a stream of messages; acknowledgements to the server.
`source`, `check` and `snapshot` may import it.
"""
