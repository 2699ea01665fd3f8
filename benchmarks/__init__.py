"""Measurements side by side with Apache Kafka and Spark's own connector, in the same run on the same machine.

Absolute times on a shared machine are not comparable: every figure is reported for both sides with their ratio, as
minimum, median and maximum over the repeats, after a warm-up of both sides.
"""
