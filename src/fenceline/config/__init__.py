"""Configuration: what keys exist, what a node was told, and which value counts (docs/configuration.md)."""
