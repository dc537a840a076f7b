"""Brings copies up to the others that were swapped in or set aside.

In: topics from a copy's own offsets on. Out: copies that go on with the others.
`spark_apply.job` alone imports it.
"""
