"""Folds copies again from their topics beside the live ones, compares them, and swaps atomically.

In: topics and live copies. Out: new copies, and how they differ from the old.
Commands alone import it.
"""
