"""The controller: (image, request or time) -> metadata records and an answer. No I/O, no clock, no randomness."""
