"""The sink writes events to Kafka."""
