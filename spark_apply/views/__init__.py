"""Views: functions of captured tables and of a clock, kept up to date as changes arrive.

In: rows of tables at a position, from `spark_apply.job`. Out: change events of each view, through a sink. `cdc.cli`
alone imports it, by name.
"""
