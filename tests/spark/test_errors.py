from __future__ import annotations

import pickle

import pytest

from pyspark_fenceline.errors import DataLossError, Loss, LossKind, parse

TRUNCATED = Loss(LossKind.LOG_TRUNCATED, "t", 3, 150, 4, divergent_offset=100, log_epoch=3, log_end_offset=200)
EXPIRED = Loss(LossKind.OFFSETS_EXPIRED, "t", 1, 10, log_start_offset=40)


def test_the_message_contains_code_facts_and_a_sentence() -> None:
    text = str(DataLossError([TRUNCATED]))
    assert text.startswith("t-3 was truncated below position ")
    assert 'LOG_TRUNCATED {"partitions": [{' in text
    assert "offsets 100 to 149" in text
    assert "leader epoch 4" in text
    assert "failOnDataLoss" in text


def test_the_most_serious_kind_comes_first() -> None:
    assert DataLossError([EXPIRED, TRUNCATED]).kind is LossKind.LOG_TRUNCATED


def test_parse_finds_the_error_in_a_spark_exception() -> None:
    error = DataLossError([TRUNCATED, EXPIRED])
    spark = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] "
        f"Failed: pyspark_fenceline.errors.DataLossError: {error} SQLSTATE: 38000\n"
        f'Traceback {{"partitions": 1}} DataLossError: {error}'
    )
    assert parse(spark) == error.losses
    assert parse(RuntimeError(spark)) == error.losses
    assert parse(error) == error.losses


def test_parse_follows_causes_and_ignores_the_rest() -> None:
    outer = RuntimeError("query failed")
    outer.__cause__ = DataLossError([EXPIRED])
    assert parse(outer) == (EXPIRED,)
    assert parse("LOG_TRUNCATED {not json") is None
    assert parse('LOG_TRUNCATED {"other": 1}') is None
    assert parse(ValueError("nothing")) is None


def test_it_survives_pickling() -> None:
    for error in (DataLossError([TRUNCATED]), DataLossError([TRUNCATED], "Do this.")):
        again = pickle.loads(pickle.dumps(error))
        assert (again.losses, str(again)) == (error.losses, str(error))
    assert " Do this. LOG_TRUNCATED {" in str(error)


@pytest.mark.parametrize("kind", LossKind)
def test_every_kind_has_a_sentence_and_advice(kind: LossKind) -> None:
    loss = Loss(kind, "t", 0, 5, log_start_offset=9, topic_id="a", found_topic_id="b")
    text = str(DataLossError([loss]))
    assert text.startswith(loss.sentence())
    assert text.index("failOnDataLoss") < text.index(kind.value + " {")


def test_an_unknown_divergence_point_is_stated() -> None:
    loss = Loss(LossKind.LOG_TRUNCATED, "t", 0, 150, 4)
    assert "at or before offset 149" in loss.sentence()
