"""What derived stores cost: rates, freshness, rebuild, verify.

In: topics made by the benchmark. Out: tables for docs/performance.md.
Nothing imports it but tests.
"""
