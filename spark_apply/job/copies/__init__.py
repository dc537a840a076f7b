"""Says which copies a job has: the tables and stores of apply.yaml, those that are set aside, their upkeep.

In: apply.yaml, the schema topic, failures of stores. Out: a route for each topic.
`spark_apply.job`, `rebuild` and `replay` may import it.
"""
