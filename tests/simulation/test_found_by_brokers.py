"""Bugs that seeds of the scenario `brokers` have found, each as a small test."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.errors import OperatorError
from fenceline.log.directories.log_dir import ExistingPartition, LogDir
from fenceline.node.controller_node import unless_failed
from fenceline.node.storage.log_recovery import recover_logs
from fenceline.testing.simulation.loop import run
from fenceline.testing.simulation.stage import play
from tests.simulation.test_brokers_scenario import NO_FAULTS


@pytest.mark.parametrize(
    "seed",
    [
        394,  # a rejected batch was sent again and acknowledged by another leader, but its first copy was not
        915,  # a start on a full disk truncated a log without recording it, so that no receipt was written
        1073,  # a truncation failed on a full disk and was the only work of a leader link, which never woke
        1449,  # a node that started with a full disk left a partition offline for good
        3171,  # a leader that learns of a smaller in-sync set and of the next leader at once commits in between
        3308,  # a power failure during a truncation damages kept records so that recovery cannot read them
        4012,  # a controller that was elected while it was stopping kept leading, and never stopped
        4178,  # power failed between a truncation and its checkpoint, and again after the next appends
    ],
)
def test_seeds_that_found_a_bug(seed: int) -> None:
    outcome = play(seed, "brokers")
    assert outcome.failure is None, outcome.report()


def test_a_topic_recreated_while_a_node_starts_is_a_new_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 88: a log was opened by its topic's name, the topic was deleted and recreated, and the records of the
    old one were used as those of the new one."""

    async def slowly(*given: Any, **named: Any) -> list[tuple[LogDir, ExistingPartition]]:
        copies = await recover_logs(*given, **named)
        await asyncio.sleep(0.5)
        return copies

    monkeypatch.setattr("fenceline.node.data_plane.recover_logs", slowly)
    options = {**NO_FAULTS, "deletes": "1", "churn_s": "0.1", "crash_s": "0.7", "power_chance": "0", "down_s": "0.1"}
    for seed in range(4):
        outcome = play(seed, "brokers", overrides={**options, "controllers": "1"})
        assert outcome.failure is None, outcome.report()
        assert outcome.struck["kill"] > 1


def test_a_start_fails_if_the_metadata_quorum_fails() -> None:
    """Seed 144: the disk was full when a node started, its quorum stopped, and the broker waited forever for its
    registration."""

    class Controller:
        def __init__(self) -> None:
            self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def failed(self) -> asyncio.Future[None]:
            return asyncio.shield(self.failure)

    ended = SimpleNamespace(by="")

    async def wait() -> None:
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            ended.by = "cancelled"
            raise

    async def scenario() -> None:
        controller = Controller()
        await unless_failed(controller, asyncio.sleep(1))  # type: ignore[arg-type]
        assert not controller.failure.done()
        asyncio.get_running_loop().call_later(3, controller.failure.set_exception, OperatorError("full", "Make room."))
        with pytest.raises(OperatorError, match="full"):
            await unless_failed(controller, wait())  # type: ignore[arg-type]
        assert ended.by == "cancelled"
        starting = asyncio.ensure_future(unless_failed(Controller(), wait()))  # type: ignore[arg-type]
        await asyncio.sleep(1)
        ended.by = ""
        starting.cancel()
        await asyncio.wait((starting,))
        assert starting.cancelled()
        assert ended.by == "cancelled", "a request to stop ends the start"

    run(scenario())
