"""What is asked of the machine: processes, clocks, memory, sockets, temporary files, and what their failures mean.

In: what Python and the kernel say. Out: the same as values and errors of ours.
Imports `cdc.model` alone; every other package may import it.
"""
