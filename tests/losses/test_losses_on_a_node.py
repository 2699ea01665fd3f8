"""Losses of groups, receipts across a restart, the quarantine and its metrics, on one node in its own process."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.client.producer.producer import Producer
from fenceline.ids import TopicPartition
from fenceline.log.core.disk import OsDisk
from fenceline.losses.cutting import cut_log
from fenceline.losses.folder import ReceiptFolder, ReceiptOutbox
from fenceline.losses.receipt import LossCause, LossClass, Receipt, receipt_id
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from tests.losses.helpers import TOPIC_ID, cut, open_log, stored_values, write

METRICS = free_port()
OVERRIDES = {
    "fenceline.metrics.port": str(METRICS),
    "log.retention.check.interval.ms": "300",
    "fenceline.lost.retention.ms": "-1",
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EmbeddedNode]:
    with EmbeddedNode(data_dir=tmp_path / "node", overrides=OVERRIDES) as running:
        yield running


def run(node: EmbeddedNode, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["losses", *arguments], env={"FENCELINE_BOOTSTRAP": node.bootstrap})
    assert result.exit_code == code, result.output
    return result.output


def listed(node: EmbeddedNode, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(node, "list", "--json"))
    return [receipt for receipt in found if receipt["topic"] == topic]


def fill(node: EmbeddedNode, topic: str, count: int) -> None:
    with Admin(node.bootstrap) as admin:
        admin.create_topics([topic])
    with Producer(node.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, str(number).encode(), partition=0)
        producer.flush()


def receipt(topic: str, **fields: Any) -> Receipt:
    parts: dict[str, Any] = {
        "topic": topic,
        "topic_id": TOPIC_ID,
        "partition": 0,
        "start_offset": 5,
        "end_offset_exclusive": 9,
        "cause": LossCause.DIVERGENCE,
        "replica": 1,
        "time_ms": 1_700_000_000_123,
    }
    return Receipt(
        id=receipt_id(**parts),
        leader_epochs=(2, 4),
        records=4,
        size_bytes=300,
        loss_class=LossClass.MAYBE_ACKNOWLEDGED,
        known_by="a test",
        reason="a test",
        leader=2,
        leader_epoch=5,
        **{**parts, **fields},
    )


def test_deleted_records_that_a_group_had_not_read_are_reported(node: EmbeddedNode) -> None:
    fill(node, "behind", 10)
    tp = TopicPartition("behind", 0)
    with Admin(node.bootstrap) as admin:
        admin.alter_group_offsets("slow", {tp: 3})
        admin.alter_group_offsets("quick", {tp: 8})
        admin.delete_records({tp: 7})
    (found,) = eventually(lambda: listed(node, "behind"), "a receipt of what the group lost")
    assert (found["start_offset"], found["end_offset_exclusive"], found["records"]) == (3, 7, 4)
    assert (found["class"], found["cause"], found["evidence"]) == ("expired", "log_start_moved", [])
    shown = json.loads(run(node, "show", "behind-0@5", "--json"))
    assert shown["group"] == "slow"
    with Admin(node.bootstrap) as admin:
        admin.delete_records({tp: 9})
    eventually(lambda: len(listed(node, "behind")) == 3)
    assert sorted((each["start_offset"], each["end_offset_exclusive"]) for each in listed(node, "behind")) == [
        (3, 7),
        (7, 9),
        (8, 9),
    ], "a reported loss is not reported again"
    assert "no evidence" in run(node, "export", "behind-0", code=1)


def test_deleted_topic_with_unread_records_is_reported(node: EmbeddedNode) -> None:
    fill(node, "doomed", 10)
    tp = TopicPartition("doomed", 0)
    with Admin(node.bootstrap) as admin:
        admin.alter_group_offsets("slow", {tp: 4})
        admin.alter_group_offsets("done", {tp: 10})
        admin.delete_topics(["doomed"])
    (found,) = eventually(lambda: listed(node, "doomed"), "a receipt of what went with the topic")
    assert (found["start_offset"], found["end_offset_exclusive"]) == (4, 10)
    assert (found["class"], found["cause"]) == ("expired", "topic_deleted")


def test_receipts_are_delivered_after_a_restart(node: EmbeddedNode) -> None:
    node.kill()
    outbox = ReceiptOutbox(OsDisk(), str(node.log_dir))
    first = receipt("gone")
    outbox.mark_due(first)
    node.start()
    (found,) = eventually(lambda: listed(node, "gone"), "the receipt that was not delivered")
    assert found["time"] == "2023-11-14T22:13:20.123Z"
    assert (found["leader_epochs"], found["records"], found["bytes"]) == ([2, 4], 4, 300)
    eventually(lambda: not outbox.due(), "delivered once, it is due no more")
    node.kill()
    outbox.mark_due(first)  # delivered, but the node stopped before it recorded that
    node.start()
    eventually(lambda: not outbox.due(), "delivered again")
    assert len(listed(node, "gone")) == 1, "a receipt counts once"


def test_evidence_is_listed_exported_and_deleted_with_its_topic(node: EmbeddedNode, tmp_path: Path) -> None:
    fill(node, "rain", 1)
    with Admin(node.bootstrap) as admin:
        topic_id = admin.metadata(["rain"]).topics["rain"].id
    node.stop()
    directory = node.log_dir / "rain-0"
    log = open_log(OsDisk(), str(directory), partition=0, topic_id=topic_id)
    write(log, 0, 6)
    values = stored_values(log)[3:]
    cut_log(OsDisk(), log, cut(3))
    log.close()
    for name in ("recovery-point-offset-checkpoint", ".kafka_cleanshutdown"):
        (node.log_dir / name).unlink(missing_ok=True)
    node.start()
    (found,) = eventually(lambda: listed(node, "rain"), "the receipt of the cut")
    exported = json.loads(run(node, "export", "rain-0", "--json"))
    assert [record["value"] for record in exported][-len(values) :] == values
    assert found["records"] == len(exported)
    arrow = tmp_path / "lost.arrow"
    run(node, "export", "rain-0", "--arrow", str(arrow))
    import pyarrow as pa

    with pa.ipc.open_file(str(arrow)) as file:
        table = file.read_all()
    assert table.column("offset").to_pylist() == [record["offset"] for record in exported]
    figures = eventually(
        lambda: match if (match := re.search(r"fenceline_losses_evidence_bytes ([1-9].*)", metrics())) else None
    )
    assert float(figures[1]) >= found["bytes"]
    assert ReceiptFolder(OsDisk(), str(directory)).contents().receipts
    with Admin(node.bootstrap) as admin:
        admin.delete_topics(["rain"])
    eventually(lambda: [each["evidence"] for each in listed(node, "rain")] == [[]], "the evidence went, and it is said")
    assert "removed from this node" in json.loads(run(node, "show", "rain-0", "--json"))["evidence_note"]
    assert "fenceline_losses_undelivered" in metrics()


def test_stray_directory_is_listed_exported_and_deleted_with_its_evidence(node: EmbeddedNode) -> None:
    """A replica that was reassigned, or whose topic was deleted, while the node was down."""
    node.kill()
    log = open_log(OsDisk(), str(node.log_dir / "gone-0"), partition=0)
    write(log, 0, 6)
    values = stored_values(log)[3:]
    # All but the last are delivered: their receipts name a former place of the evidence.
    folder = ReceiptFolder(OsDisk(), log.directory)
    (first,) = cut_log(OsDisk(), log, cut(9))
    folder.mark_reported(first)
    cut_log(OsDisk(), log, cut(3, time_ms=8_000))
    log.close()
    (node.log_dir / ".kafka_cleanshutdown").unlink(missing_ok=True)
    node.start()
    found = eventually(lambda: each if len(each := listed(node, "rain")) == 2 else None, "both receipts")
    (stray,) = node.log_dir.glob("gone-0.*-stray")
    assert all(Path(path).parent == stray / "lost+found" for each in found for path in each["evidence"])
    exported = [json.loads(run(node, "export", f"rain-0@{offset}", "--json")) for offset in (3, 9)]
    assert [record["value"] for records in exported for record in records][-len(values) :] == values
    outbox = ReceiptOutbox(OsDisk(), str(node.log_dir))
    eventually(lambda: not outbox.due())
    node.stop()
    node.start()
    assert len(outbox.contents().receipts) == 2, "the next start reports nothing again"
    shutil.rmtree(stray)
    eventually(lambda: [each["evidence"] for each in listed(node, "rain")] == [[], []], "the evidence went with it")
    eventually(lambda: not outbox.contents().receipts)


def test_first_segments_removed_by_an_operator_are_reported(node: EmbeddedNode) -> None:
    """With rm, to free disk space, while the node was cleanly stopped: it serves the remaining segments."""
    with Admin(node.bootstrap) as admin:
        admin.create_topics([NewTopic("short", configs={"segment.bytes": "1048576"})])
    with Producer(node.bootstrap) as producer:
        for _ in range(3):
            producer.send("short", b"v" * 700_000, partition=0).result()
    node.stop()
    directory = node.log_dir / "short-0"
    first, second, _ = sorted(directory.glob("*.log"))
    for path in directory.glob(f"{first.stem}.*"):
        path.unlink()
    node.start()
    (found,) = eventually(lambda: listed(node, "short"), "a receipt of what is gone")
    end = int(second.stem)
    assert (found["start_offset"], found["end_offset_exclusive"], found["records"]) == (0, end, end)
    assert (found["class"], found["cause"], found["evidence"]) == ("committed", "recovery", [])
    with Admin(node.bootstrap) as admin:
        tp = TopicPartition("short", 0)
        assert admin.list_offsets({tp: "earliest"})[tp].offset == end
    node.stop()
    node.start()
    assert len(listed(node, "short")) == 1, "the next start knows the log start"


def test_commands_without_losses_and_with_unknown_names(node: EmbeddedNode) -> None:
    assert run(node, "list").strip().startswith("There are no loss receipts.")
    assert "no loss receipt" in run(node, "show", "nothing-0", code=1)
    ReceiptOutbox(OsDisk(), str(node.log_dir)).mark_due(receipt("gone"))
    node.stop()
    node.start()
    eventually(lambda: listed(node, "gone"), "a receipt")
    for words in (("--topic", "nothing"), ("--topic", "gone", "--class", "expired")):
        assert run(node, "list", *words).strip() == "There are no loss receipts of this topic and class."


def test_failed_export_is_reported(node: EmbeddedNode, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(b"")
    ReceiptOutbox(OsDisk(), str(node.log_dir)).mark_due(receipt("gone", evidence=(str(kept),)))
    node.stop()
    node.start()
    eventually(lambda: listed(node, "gone"), "a receipt")
    nowhere = tmp_path / "no such directory" / "lost.arrow"
    reported = run(node, "export", "gone-0", "--arrow", str(nowhere), code=1)
    assert f"{nowhere} cannot be written: No such file or directory" in reported
    assert "mutually exclusive" in run(node, "export", "gone-0", "--arrow", str(nowhere), "--json", code=1)


def metrics() -> str:
    with urlopen(f"http://127.0.0.1:{METRICS}/metrics", timeout=30) as answer:
        return str(answer.read().decode())
