"""Defines the values of the apply job: derived table, types, identity, completeness, and the seam of stores.

In: versions of the schema topic. Out: `TargetTable`, `Store`, `Complete`. Third parties import
`spark_apply.model.store`. Every folder above may import it; it imports `spark_apply.spark` alone.
"""
