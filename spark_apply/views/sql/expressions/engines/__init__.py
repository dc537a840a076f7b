"""What engines other than the embedded one have otherwise: names, functions, what PostgreSQL does not have.

In: expressions as the embedded engine has them. Out: the same for Spark or PostgreSQL, or a refusal by name.
Imported by all that writes statements of views; `dialects` says for which engine they are.
"""
