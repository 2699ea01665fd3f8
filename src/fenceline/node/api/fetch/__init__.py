"""Fetch: from the bytes of a request to slices of a log, at once or when data arrives."""
