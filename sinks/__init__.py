"""Where events go: Kafka."""
