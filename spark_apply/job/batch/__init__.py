"""Folds one batch of records into stores: surveyed, typed, checked, given to each store, counted.

In: records of topics. Out: rows in stores, poison records in the quarantine.
`spark_apply.job` and `rebuild` may import it.
"""
