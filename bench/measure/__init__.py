"""Meters, medians, tables, a plot.

In: runs. Out: figures.
Every benchmark may import it.
"""
