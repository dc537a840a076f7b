"""Erasure: makes what a deleted row has left in topics go, and says of each place whether it is gone.

In: a connector's settings, a table, and a key whose delete has reached the topic, or a subject whose values are
encrypted. Out: places, with what is proved of each. Imported by `cdc erase` alone.
"""
