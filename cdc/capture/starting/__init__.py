"""From fence to loop: whether another copy is at work, whether the position still fits, where to go on.

In: a position, a source and a sink. Out: the state that a session begins with, or the error that says why not.
`cdc.capture.pipeline` starts sessions with it; it knows no session.
"""
