"""Runs the tools that are measured beside ours.

In: the same rows. Out: the same meters.
Benchmarks import it.
"""
