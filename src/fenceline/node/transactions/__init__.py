"""Transactions whose coordinator is another node."""
