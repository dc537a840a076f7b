"""Runs the `cdc` command as ``python -m cdc``."""

from cdc.cli.start import main

if __name__ == "__main__":
    main()
