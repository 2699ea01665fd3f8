"""The producer: accumulate, send, deliver."""
