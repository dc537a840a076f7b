"""Servers by script: brokers, a registry and others that answer as a test has written it."""
