"""The `cdc` command: rooms by who needs a command, a file for each; stdout is data, stderr is logs.

In: arguments and YAML files. Out: tables for people, JSON for programs, exit codes 0, 1, 2, 3.
Nothing imports it; it starts fast, so heavy parts are loaded by name where they are used.
"""
