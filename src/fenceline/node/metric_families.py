"""Metric families for prometheus-client: gauges (current values) and counters (totals since the start).

Owns the form only; the collectors own values and names. prometheus-client is imported at the first scrape, not before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Figure: TypeAlias = tuple[str, str, float]
"""Name, help, value."""


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
