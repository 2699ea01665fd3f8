"""The simulation itself, and the stories that it plays."""
