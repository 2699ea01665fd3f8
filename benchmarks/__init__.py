"""Measurements side by side with Apache Kafka and Spark's own connector, in the same run on the same machine.

Absolute times of a shared machine prove nothing; every figure is given for both sides with its ratio, as minimum,
median and maximum over the repeats, after both sides were warmed up.
"""
