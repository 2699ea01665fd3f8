"""The metadata log on disk and its snapshots: format, open, replay, generate, load."""
