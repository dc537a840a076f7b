"""The fault harness: a workload, faults, and oracles that say what a reader of the topics must never see."""
