"""Servers for development and tests, without containers: started, found again, broken on purpose, stopped."""
