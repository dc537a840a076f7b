"""The engine of views on Spark's executors: rows in tables of a lake, what changed since in a file of the driver.

In: rows of tables at a position, and statements for Spark. Out: the changes of views, in the state's outbox.
`spark_apply.views.job` alone imports it.
"""
