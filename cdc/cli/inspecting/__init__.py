"""Commands that look and change nothing: what stands where, what is wrong, whether copies agree.

In: YAML files, topics, stores. Out: tables for people, JSON for programs; an exit code that answers.
The command line loads each by name; `cdc demo` shows what `cdc verify` says.
"""
