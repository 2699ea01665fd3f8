"""Fenceline: a Kafka-compatible replicated log. Nothing that a log loses goes unnoticed."""

__version__ = "0.1.0"
