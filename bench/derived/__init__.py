"""Measures derived stores: rates, freshness, rebuild, verify.

In: topics made by the benchmark. Out: tables for docs/performance.md.
Nothing imports it but tests.
"""
