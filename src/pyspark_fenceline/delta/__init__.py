"""`format("fenceline_delta")`: a Delta sink that removes stale rows before it appends."""
