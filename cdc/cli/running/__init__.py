"""Commands that stay up, and those that hold them or have them go on: connectors, fleets, jobs, views.

In: YAML files, signals of the process. Out: the work itself, its log on stderr, its figures.
The command line loads each by name; nothing else imports them.
"""
