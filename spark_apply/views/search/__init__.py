"""Searches that are kept, and the texts that they find: the language of searches, and what is found as texts change.

In: rows of searches and of texts. Out: the pairs that match. `spark_apply.views` alone imports it.
"""
