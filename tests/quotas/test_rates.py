"""Rates and token buckets, against those of Apache Kafka. Rules: security.md A58, A61.

`KafkaRates.java` records the same values in the classes of Kafka's jars.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from fenceline.quotas.rates import TokenBucket, WindowedRate, Windows
from fenceline.testing.apache_kafka import DEFAULT_JARS
from tests.support.recorded import Answer

STORIES, RECORDS = 80, 40


class Story(NamedTuple):
    windows: Windows
    quota: float
    records: tuple[tuple[float, int], ...]
    """Value and time."""


def story(seed: int) -> Story:
    rng = Random(seed)
    windows = Windows(rng.choice((11, 11, 2, 5)), rng.choice((1_000, 1_000, 2_000)))
    longest_ms = rng.choice((3, 100, 900, 1_000, 2_500, 30_000))
    now_ms, records = 1_000_000, []
    for _ in range(RECORDS):
        now_ms += rng.randrange(longest_ms + 1) if rng.random() < 0.8 else 0
        records.append((rng.choice((0.0, 1.0, 1000.0, rng.randrange(100_000))), now_ms))
    return Story(windows, rng.choice((1.0, 0.5, 1000.0, 1e6)), tuple(records))


@pytest.fixture
def kafka_rates() -> Any:
    def ask(stories: list[Story]) -> list[list[list[float]]]:
        lines = []
        for windows, quota, records in stories:
            lines.append(f"new {windows.samples} {windows.sample_ms // 1000} {quota}\n")
            lines += [f"{value} {now_ms}\n" for value, now_ms in records]
        command = ["java", "-cp", str(DEFAULT_JARS / "server" / "*"), str(Path(__file__).with_name("KafkaRates.java"))]
        done = subprocess.run(command, input="".join(lines), capture_output=True, text=True, check=True, timeout=300)
        rows = [[float(each) for each in line.split()] for line in done.stdout.splitlines()]
        return [rows[start : start + RECORDS] for start in range(0, len(rows), RECORDS)]

    return ask


def test_rates_and_buckets_are_those_of_kafka(answer: Answer) -> None:
    stories = [story(seed) for seed in range(STORIES)]
    expected = answer("kafka_rates", lambda ask: ask(stories))
    for seed, (given, kafkas) in enumerate(zip(stories, expected, strict=True)):
        rate, bucket = WindowedRate(given.windows), TokenBucket(given.windows, given.quota, given.records[0][1])
        for (value, now_ms), (per_second, window_ms, tokens) in zip(given.records, kafkas, strict=True):
            rate.record(value, now_ms)
            bucket.refill(given.quota, now_ms)
            bucket.tokens -= value
            assert rate.per_second(now_ms) == pytest.approx(per_second), f"seed {seed}"
            assert rate.window_ms(now_ms) == window_ms, f"seed {seed}"
            assert bucket.tokens == pytest.approx(tokens), f"seed {seed}"


def test_a_rate_above_its_quota_is_throttled_until_it_is_down() -> None:
    rate = WindowedRate(Windows())
    assert rate.throttle_ms(100, 0) == 0
    rate.record(2_000, 0)
    wait_ms = rate.throttle_ms(100, 0)
    assert wait_ms == 10_000, "2,000 in 10 s are 200 a second, twice the quota"
    assert rate.throttle_ms(200, 0) == 0
    assert not rate.is_idle(10_999)
    assert rate.is_idle(11_000)


def test_a_bucket_may_be_overdrawn() -> None:
    bucket = TokenBucket(Windows(), 2.0, 0)
    assert bucket.tokens == 22
    bucket.tokens -= 30
    assert bucket.throttle_ms(2.0) == 4_000
    bucket.refill(2.0, 4_000)
    assert bucket.throttle_ms(2.0) == 0
    bucket.refill(2.0, 1_000_000)
    assert bucket.tokens == 22


@pytest.mark.parametrize("quota", [1e-300, 1e-9, 0.1])
def test_a_throttle_time_fits_into_an_answer(quota: float) -> None:
    rate, bucket = WindowedRate(Windows()), TokenBucket(Windows(), quota, 0)
    rate.record(1e10, 0)
    assert rate.throttle_ms(quota, 0) == 2**31 - 1
    bucket.tokens -= 1e10
    assert bucket.throttle_ms(quota) == 2**31 - 1
