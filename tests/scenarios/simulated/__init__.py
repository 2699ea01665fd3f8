"""Scripts of simulated clusters."""
