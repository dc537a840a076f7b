"""A derived table, its types, its identity, how far it is complete, and the seam that every store keeps.

In: versions of the schema topic. Out: `TargetTable`, `Store`, `Complete`. Third parties import
`spark_apply.model.store`. Every folder above may import it; it imports `spark_apply.spark` alone.
"""
