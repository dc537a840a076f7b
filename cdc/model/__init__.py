"""The values (changes, tables, positions, states, errors) and the seams between the parts.

In: nothing. Out: changes, tables, positions, states, errors, and the Protocols a source, a snapshotter and a sink keep.
Everything may import it; it imports nothing of ours.
"""
