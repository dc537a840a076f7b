"""Reads YAML files into dataclasses: each value with its line, references to secrets filled in, misspelt keys told.

In: a file, a dataclass. Out: an instance of it, or a ConfigError that names file, line and key.
Whatever describes a file of ours may import it.
"""
