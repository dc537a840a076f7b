"""Turns bytes of the binlog into events and binlog positions.

In: packets of a dump. Out: frozen events. No I/O but for temporary files of long transactions.
All of `connectors.mysql` may import it.
"""
