"""Proves views from the topics alone, without a look at the job's state: comparison with Spark's answer, explanation.

Takes a views.yaml and what is published; gives the rows that differ, and which rows of tables a row comes from.
Used by the command line.
"""
