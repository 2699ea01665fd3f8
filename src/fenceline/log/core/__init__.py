"""What one file holds, and values that all parts of a log share. Never opens a log as a whole."""
