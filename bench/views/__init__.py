"""Measures views: a step of each engine, a job as a whole, both beside Flink.

In: relations in memory, or topics made by the benchmark. Out: tables for docs/performance.md.
Nothing imports it.
"""
