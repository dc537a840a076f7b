"""Servers for development and tests, without containers: started, found again, broken on purpose, stopped.

In: names of servers. Out: running servers with their URLs; jars, Debian packages and Java in a cache.
`cdc.cli`, `spark_apply.spark` (jars, Java) and tests may import it.
"""
