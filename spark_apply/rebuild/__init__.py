"""Copies folded again from their topics beside the live ones, compared, swapped in one step.

In: topics and live copies. Out: new copies, and how they differ from the old.
Commands alone import it.
"""
