"""Commands: they print, and decide nothing."""
