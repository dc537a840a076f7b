"""Looks at connectors, jobs and consumers from outside, whether they run or not: what a page and its metrics show.

In: the files of connectors and jobs, and what Kafka, the source's server and the stores say. Out: plain values, one
page, one address. It changes nothing by itself. `cdc.cli` alone imports it.
"""
