"""Sources: a folder each."""
