"""Opening the files of a log after a stop: trust, verify, cut, and keep what is cut."""
