"""Configuration: what keys exist, what a node was told, and which value counts (design.md section 9)."""
