"""Judges what topics still have: whether they are the same as before, and whether a copy has missed what they forgot.

In: what Kafka says of topics, marks of copies. Out: verdicts, each with the command that helps.
`spark_apply.job`, `rebuild` and `replay` may import it.
"""
