"""What of a table is published (columns, rows, values masked, hashed or truncated), and in which form.

In: the rules of connector.yaml, tables and rows of `cdc.model`. Out: what events have of a row, or that there is none.
`cdc.encode` and all above it may import it, and sources whose columns say how texts are compared; it imports
`cdc.model` and `cdc.config`.
"""
