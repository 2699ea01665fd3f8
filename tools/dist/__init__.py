"""Builds the archives that people install, and tries each of them: `make dist`."""
