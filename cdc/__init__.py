"""Change data capture: a database log in, keyed change events out."""

__version__ = "0.1.0"
