"""The consumer: positions, fetches, groups, truncation."""
