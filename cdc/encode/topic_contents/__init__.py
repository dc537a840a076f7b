"""What the topics hold by now: which keys are live, and which values the log has left out.

In: records of a topic, read back through a sink. Out: keys, and values by key and column, in temporary files.
What writes events may import it, and every reader that meets foreign records; it writes to no topic.
"""
