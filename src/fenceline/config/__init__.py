"""Configuration: the known keys, the values given to a node, and their precedence (docs/configuration.md)."""
