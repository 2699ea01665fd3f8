"""The controller: (image, request or time) -> metadata records and a response. No I/O, no clock, no randomness."""
