"""The `cdc` command for spark-submit, which starts files: `spark-submit … deploy/job.py apply apply.yaml`."""

from cdc.cli.start import main

main()
