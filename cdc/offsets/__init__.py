"""Where a connector or a job stands, as a file: exported, and imported into one that is down.

In: positions in Kafka, and files that were exported. Out: the same as JSON, and one commit of another position. Nothing
here runs beside a connector. `cdc.cli` and `spark_apply.replay` import it.
"""
