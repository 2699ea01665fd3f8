"""Metric families for prometheus-client: gauges (current values), counters (totals since the start) and histograms.

Owns the form only; the collectors own values and names, and the parts of the node own their counters. prometheus-client
is imported at the first scrape, not before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

Figure: TypeAlias = tuple[str, str, float]
"""Name, help, value."""

_BOUNDS_S: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


def gauges(*figures: Figure) -> Iterator[Any]:
    """Without labels."""
    from prometheus_client.core import GaugeMetricFamily

    for name, help_text, value in figures:
        yield GaugeMetricFamily(name, help_text, value=value)


def counters(*figures: Figure) -> Iterator[Any]:
    """Without labels; prometheus-client adds `_total` to the names."""
    from prometheus_client.core import CounterMetricFamily

    for name, help_text, value in figures:
        yield CounterMetricFamily(name, help_text, value=value)


def gauge_by(label: str, name: str, help_text: str, values: Mapping[str, float]) -> Any:
    """One gauge with a value for each value of a label."""
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, help_text, labels=[label])
    for value_of_label, value in values.items():
        family.add_metric([value_of_label], value)
    return family


def counter_by(label: str, name: str, help_text: str, values: Mapping[str, float]) -> Any:
    """One counter with a value for each value of a label."""
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(name, help_text, labels=[label])
    for value_of_label, value in values.items():
        family.add_metric([value_of_label], value)
    return family


class Durations:
    """A histogram of durations in seconds."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_S) + 1)
        """By bound; the last one counts longer durations."""
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def family(self, name: str, help_text: str) -> Any:
        from prometheus_client.core import HistogramMetricFamily

        buckets, seen = [], 0
        for bound, count in zip((*map(str, _BOUNDS_S), "+Inf"), self.counts, strict=True):
            seen += count
            buckets.append((bound, seen))
        return HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=self.total_s)
