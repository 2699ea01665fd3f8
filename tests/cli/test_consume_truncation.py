"""`fenceline consume` reports that printed records were truncated, and continues by its policy."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from typer.testing import CliRunner

from fenceline.cli import records
from fenceline.cli.app import app
from fenceline.cli.records import _policy, _print_record, describe_truncation
from fenceline.client.core.errors import LogTruncationError
from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.errors import OperatorError
from fenceline.testing.waiting import eventually
from tests.client.scripted_cluster import ScriptedCluster
from tests.kip.test_kip320_consumer import write


@pytest.mark.parametrize(
    ("policy", "code", "printed", "said"),
    [
        ("fail", 1, 10, "--from =6"),
        ("rewind", 0, 14, "Reading continues at offset 6."),
        ("reset", 0, 14, "Reading continues at offset 6."),
    ],
)
def test_truncation_of_printed_records_is_reported(
    policy: str, code: int, printed: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[None] = []

    def print_record(record: Any, as_json: bool) -> None:
        _print_record(record, as_json)
        done.append(None)

    monkeypatch.setattr(records, "_print_record", print_record)
    with ScriptedCluster(nodes=2) as cluster:
        (tp,) = cluster.add_topic("t")
        write(cluster, tp, "a", 10)
        results: list[Any] = []
        arguments = ["consume", "t", "--follow", "-n", "14", "--on-truncation", policy, "-b", cluster.bootstrap]
        thread = threading.Thread(target=lambda: results.append(CliRunner().invoke(app, arguments)))
        thread.start()
        eventually(lambda: len(done) == 10, "ten are printed")
        cluster.logs[tp].elect(2, cut_to=6)
        write(cluster, tp, "b", 4)
        thread.join(60)
        (result,) = results
    assert result.exit_code == code, result.output
    assert len(result.stdout.splitlines()) == printed
    assert "It no longer contains what was printed as records 6 to 9 (leader epoch 0)." in result.stderr
    assert said in result.stderr


def test_messages_without_a_divergent_offset_and_with_a_receipt() -> None:
    message, advice = describe_truncation(LogTruncationError("t", 3, 10, 5))
    assert "t-3: the log was truncated below offset 10" in message
    assert "--partition 3" in advice
    receipt = LossReceipt("0123456789abcdef", "t", "", 3, 9, 10, (5,), 1, 70, "committed", "divergence", 2, 1, 0, ())
    reported = LogTruncationError("t", 3, 10, 5, divergent_offset=9, divergent_epoch=4, epochs=[5], evidence=[receipt])
    message, _ = describe_truncation(reported)
    assert "record 9 (leader epoch 5)" in message
    assert "fenceline losses show 0123456789ab" in message


@pytest.mark.parametrize(
    ("choice", "reset", "said"),
    [
        ("reset", "earliest", "continues at the start of the log"),
        ("reset", "latest", "continues at the end of the log"),
        ("latest", "earliest", "continues at the end of the log"),
        ("rewind", "earliest", None),
        ("fail", "latest", None),
    ],
)
def test_without_a_divergent_offset_a_reset_starts_at_the_default(
    choice: str, reset: str, said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    error = LogTruncationError("t", 3, 10, 5)
    decide = _policy(choice, reset)
    if said is None:
        with pytest.raises(OperatorError, match="truncated below offset 10"):
            decide(error)
        return
    assert decide(error) == choice
    assert said in capsys.readouterr().err


def test_an_unknown_policy_is_rejected() -> None:
    with ScriptedCluster() as cluster:
        cluster.add_topic("t")
        result = CliRunner().invoke(app, ["consume", "t", "--on-truncation", "maybe", "-b", cluster.bootstrap])
    assert result.exit_code == 1
    assert "Choose fail, rewind, latest or reset" in result.stderr
