"""Computes views in an engine inside the job's process (DuckDB): its state, a step of it, and how events are folded.

Takes events of tables and plans of views; gives what changes in each view, and keeps the rows in one file.
Used by the job and by the proof; it knows neither Kafka nor Spark.
"""
