"""How each kind of expression is carried over: one rule for each node of sqlglot, and the types that it takes.

In: a node, with the types of its parts. Out: the same value in the engine, or a refusal by name.
Imported by `for_engine`, which puts the rules together, and by what asks which aggregates there are.
"""
