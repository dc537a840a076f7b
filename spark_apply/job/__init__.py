"""The apply job: micro-batches, barriers, watermarks, maintenance, what a start would do.

In: apply.yaml and a connector's topics. Out: stores that follow.
`rebuild`, `verify` and commands may import it.
"""
