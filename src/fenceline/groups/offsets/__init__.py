"""Committed offsets: commits, fetches, expiry, marks of truncation."""
