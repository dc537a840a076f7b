"""The Spark session, its class archive, its failures in our terms; paths and names that Spark can use.

In: settings. Out: a session on which the results of this package rest.
Every folder of `spark_apply` may import it; it imports none of them.
"""
