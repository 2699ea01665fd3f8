"""Spark's Kafka connector and `format("fenceline")` against a secured node: the same `kafka.` options mean the same,
for every login, and a wrong, expired or replaced secret ends the query on both.

Rules: security.md A7, A13, A23 to A29, A70, A71.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import NEEDS_CONNECTOR
from tests.spark.sinks import OURS, THEIRS
from tests.support.logins import (
    CERTIFICATE,
    OAUTH,
    PASSWORDS,
    SCRAM_512,
    TOKEN,
    Login,
    Place,
    java_settings,
    place_of_logins,
    set_password,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.timeout(400),
    NEEDS_CONNECTOR,
]
ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_of_logins(tmp_path_factory.mktemp("connectors")) as made:
        java = spark._jvm.java.lang.System  # type: ignore[union-attr]
        java.setProperty(ALLOWED_URLS, made.issuer.url)
        yield made
        java.clearProperty(ALLOWED_URLS)


def right_and_wrong(place: Place, kind: str, folder: Path) -> tuple[Login, Iterator[Login]]:
    """The client of Kafka asks the issuer for its tokens itself: the secret is the password there."""
    if kind == OAUTH:
        return Login(OAUTH, "secret"), iter((Login(OAUTH, "wrong"),))
    return place.right(kind), place.wrong(kind, folder)


class Through:
    """One of the two, with the options of a login."""

    def __init__(self, spark: SparkSession, word: str, place: Place, login: Login) -> None:
        self._spark, self._word = spark, word
        self._options = {f"kafka.{key}": text for key, text in java_settings(place, login).items()}

    def write(self, value: str) -> None:
        rows = self._spark.createDataFrame([(value,)], "value string")
        rows.write.format(self._word).mode("append").options(**self._options).option("topic", "t").save()

    def read(self) -> set[str]:
        """The values in the topic."""
        rows = self._spark.read.format(self._word).options(**self._options).option("subscribe", "t").load()
        return {bytes(row.value).decode() for row in rows.select("value").collect()}


@pytest.mark.parametrize("word", [OURS, THEIRS])
@pytest.mark.parametrize("kind", [*PASSWORDS, OAUTH, CERTIFICATE, TOKEN])
def test_right_and_wrong_secrets(spark: SparkSession, place: Place, word: str, kind: str, tmp_path: Path) -> None:
    right, wrong = right_and_wrong(place, kind, tmp_path)
    value = f"{word} {kind} {time.time()}"
    through = Through(spark, word, place, right)
    through.write(value)
    assert value in through.read()
    for login in wrong:
        refused = Through(spark, word, place, login)
        with pytest.raises(Exception, match=r"(?i)authentication|handshake|certificate|token"):
            refused.read()
        with pytest.raises(Exception, match=r"(?i)authentication|handshake|certificate|token|did not answer"):
            refused.write("of a stranger")
    assert "of a stranger" not in through.read()


@pytest.mark.parametrize("word", [OURS, THEIRS])
def test_changed_passwords(spark: SparkSession, place: Place, word: str) -> None:
    set_password(place, "another")
    try:
        with pytest.raises(Exception, match=r"(?i)authentication"):
            Through(spark, word, place, Login(SCRAM_512, "secret")).read()
        Through(spark, word, place, Login(SCRAM_512, "another")).write(f"{word} with the new password")
        assert f"{word} with the new password" in Through(spark, word, place, Login(SCRAM_512, "another")).read()
    finally:
        set_password(place, "secret")
