"""Keeps a job's captured tables in the state, and computes its views step by step.

In: batches and watermarks of the apply job, new events of streams, commands. Out: changes of views, in the outbox.
`spark_apply.views` alone imports it.
"""
