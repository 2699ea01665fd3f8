"""The simulation itself, and its scenarios."""
