"""Provides the Spark session, its class archive, its failures in our terms; paths and names for Spark.

In: settings. Out: a session on which the results of this package rest.
Every folder of `spark_apply` may import it; it imports none of them.
"""
