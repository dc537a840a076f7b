"""A job that is not at work: from where it goes on, and copies of it that read a part of the topics again.

In: apply.yaml, its checkpoint, and offsets or a time. Out: another checkpoint, or a job of its own beside the live one.
`cdc.cli` alone imports it.
"""
