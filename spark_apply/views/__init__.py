"""Views: functions of captured tables and of a clock, kept up to date as changes arrive.

In: tables' rows at a position, from `spark_apply.job`. Out: change events of each view, through a sink. Nothing imports it
but `cdc.cli`, by name.
"""
