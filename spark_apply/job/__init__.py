"""Runs the apply job: micro-batches, barriers, watermarks, maintenance, and the plan of a start.

In: apply.yaml and a connector's topics. Out: stores that follow.
`rebuild`, `verify` and commands may import it.
"""
