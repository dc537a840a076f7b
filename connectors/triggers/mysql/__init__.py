"""MySQL and MariaDB by triggers: a change table for each captured table, read in rounds.

In: a URL, tables. Out: a `Source` that gives what triggers have written down.
"""
