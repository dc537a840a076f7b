"""Each source has a folder here."""
