"""Measures the cost of capture: streams, snapshots, latency, growth, hot path, memory.

In: servers started by the benchmark, or logs held in memory. Out: tables for docs/performance.md.
Nothing imports it but tests.
"""
