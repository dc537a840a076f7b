"""What a process shows of itself: metrics, health, the JSON log; and the dashboard that is made of the metrics.

In: what the loop and the apply job tell their meters (`cdc.model.meter`), and what `cdc status` asks a server. Out: the
answers of one address. `cdc.cli` alone imports it.
"""
