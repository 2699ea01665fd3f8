"""Fenceline: a Kafka-compatible replicated log that reports every loss of records."""

__version__ = "0.1.0"
