"""Helpers that tests share. Not part of the package."""
