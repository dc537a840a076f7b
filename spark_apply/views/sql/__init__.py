"""A view's SQL: parsed, checked, and taken apart into statements that compute what a change can touch. Pure.

In: the text of views.yaml and the columns of tables. Out: statements for an engine. `spark_apply.views` alone imports
it.
"""
