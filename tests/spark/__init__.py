"""What tests of stores share: one Spark, records of topics, the laws of stores, jobs that crash."""
