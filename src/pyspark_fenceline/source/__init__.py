"""`format("fenceline")`: batch and stream source, topic sink, tables of losses and of removed rows."""
