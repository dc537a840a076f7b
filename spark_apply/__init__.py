"""Folds a connector's topics into derived stores: tables and search indexes. Needs the extra `spark`."""
