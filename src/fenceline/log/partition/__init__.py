"""An open log: append, read, truncate, save, delete old segments."""
