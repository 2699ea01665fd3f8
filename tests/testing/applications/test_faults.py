"""Each kind of fault happens, is told, and ends; what an application was promised is kept."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from fenceline.client import AsyncConsumer, AsyncProducer
from fenceline.errors import FencelineError
from fenceline.testing.applications.fault_plan import EVERY_FAULT, LOSING, FaultKind, plan
from fenceline.testing.applications.forks import outcomes
from fenceline.testing.applications.one_seed import StoryJob, planned
from fenceline.testing.applications.running import run_seeds
from fenceline.testing.applications.store import SimulatedStore
from fenceline.testing.applications.story import simulated
from fenceline.testing.applications.story_world import StoryWorld
from fenceline.testing.processing_checks import assert_at_least_once, assert_exactly_once
from fenceline.testing.simulation.world import World
from tests.testing.applications.stories import FAST

GROUP = "readers"


async def reading(servers: str, store: SimulatedStore, on_truncation: str = "fail") -> None:
    """Copies a topic into a store."""
    async with AsyncConsumer(
        servers,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        on_truncation=on_truncation,
        **FAST,
    ) as consumer:
        consumer.subscribe(["t"])
        while True:
            records = await consumer.poll(500)
            await store.write({(record.value or b"").decode(): b"" for record in records})
            if records:
                await consumer.commit(records.next_offsets())


async def produce(world: StoryWorld, until_s: float) -> dict[int, int]:
    """By number of the record, its offset."""
    sent: dict[int, int] = {}
    async with AsyncProducer(world.bootstrap_servers, request_timeout_ms=2000) as producer:
        while world.now_s < until_s:
            number = len(sent)
            try:
                sent[number] = (await (await producer.send("t", b"%d" % number))).offset
            except FencelineError as error:
                world.note(f"record {number} is not acknowledged: {type(error).__name__}")
                sent[number] = -1
            await asyncio.sleep(0.1)
    return {number: offset for number, offset in sent.items() if offset >= 0}


async def copied(world: StoryWorld) -> None:
    store = world.store("copy")
    world.start("reader", reading, world.bootstrap_servers, store)
    sent = await produce(world, 1.5)
    await world.quiet()
    await world.caught_up(GROUP, "t")
    assert_at_least_once(sent, map(int, store.content))


@pytest.mark.parametrize("kind", EVERY_FAULT)
def test_what_was_acknowledged_is_processed_in_spite_of(kind: FaultKind) -> None:
    story = simulated(topics=["t"], faults=(kind,), seconds=1.5)(copied)
    found = run_seeds(story, range(3), shrink=False)
    assert any(outcome.injected for outcome in found), "it met something"
    assert all(len(outcome.lines) > len(outcome.injected) for outcome in found), "each is told"


def test_an_unclean_election_loses_records_and_leaves_receipts() -> None:
    async def story(world: StoryWorld) -> None:
        store = world.store("copy")
        world.start("reader", reading, world.bootstrap_servers, store, "rewind")
        sent = await produce(world, 6)
        await world.quiet()
        left = {int(record.value or b"") for record in await world.records("t")}
        lost = {number: offset for number, offset in sent.items() if number not in left}
        receipts = [each for each in await world.losses() if each.topic == "t"]
        covered = {offset for each in receipts for offset in range(each.start_offset, each.end_offset_exclusive)}
        assert set(lost.values()) <= covered, "every lost record has a receipt"
        world.note(f"lost {len(lost)}")

    subject = simulated(topics=["t"], faults=(), unclean_elections=True, seconds=2)(story)
    found = run_seeds(subject, range(3), shrink=False)
    assert any(line.text.startswith("lost ") and line.text != "lost 0" for each in found for line in each.lines)


def test_a_group_continues_from_an_older_offset_after_a_lost_commit() -> None:
    async def story(world: StoryWorld) -> None:
        store = world.store("copy")
        reader = world.start("reader", reading, world.bootstrap_servers, store)
        sent = await produce(world, 3)
        await asyncio.sleep(3)
        await world.quiet()
        await world.until(lambda: len(store.content) >= len(sent))
        reader.kill()  # its successor begins at the committed offset
        await asyncio.sleep(2)
        assert_at_least_once(sent, map(int, store.content))
        times = Counter(number for write in store.writes for number in write.changes)
        world.note(f"processed again: {sum(each > 1 for each in times.values())}")

    subject = simulated(topics=["t"], faults=(), lost_commits=True, seconds=2)(story)
    found = [line.text for each in run_seeds(subject, range(4), shrink=False) for line in each.lines]
    assert any(text.startswith("the group coordinator is n") for text in found), "an unclean election"
    assert any(text.startswith("processed again: ") and text != "processed again: 0" for text in found)


def test_a_topic_is_made_anew_under_a_running_producer() -> None:
    async def story(world: StoryWorld) -> None:
        await produce(world, 2)
        await world.quiet()

    subject = simulated(topics=["t"], faults=(), recreated_topics=True, seconds=1.5)(story)
    assert any("is created again" in line.text for each in run_seeds(subject, range(2)) for line in each.lines)


def test_transactions_copy_exactly_once() -> None:
    async def copying(servers: str) -> None:
        async with (
            AsyncConsumer(
                servers,
                group_id=GROUP,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
                **FAST,
            ) as consumer,
            AsyncProducer(servers, transactional_id="copy", request_timeout_ms=2000) as producer,
        ):
            await producer.init_transactions()
            consumer.subscribe(["t"])
            while True:
                records = await consumer.poll(500, max_records=5)
                if records:
                    async with producer.transaction():
                        for record in records:
                            await producer.send("copy", record.value)
                        await producer.send_offsets_to_transaction(records.next_offsets(), consumer.group_metadata())

    async def story(world: StoryWorld) -> None:
        world.start("copier", copying, world.bootstrap_servers)
        sent = await produce(world, 1.5)
        await world.quiet()
        await world.caught_up(GROUP, "t")
        assert_exactly_once(sent, [int(record.value or b"") for record in await world.records("copy")])

    run_seeds(simulated(topics=["t", "copy"], transactions=True, seconds=1.5)(story), range(6))


def test_faults_are_left_out_without_a_change_of_the_others() -> None:
    story = simulated(topics=["t"], seconds=1.5)(copied)
    seed = next(seed for seed in range(100) if len(planned(story, seed)) > 2)
    outcome = next(outcomes(story, [StoryJob(seed, frozenset({2}))]))
    assert set(outcome.injected) <= {2}
    quiet = next(outcomes(story, [StoryJob(seed, frozenset())]))
    assert not quiet.injected
    assert [line.text for line in quiet.lines] == ["no more faults"]


def test_losses_of_acknowledged_records_must_be_allowed() -> None:
    assert not LOSING & set(EVERY_FAULT)
    drawn = {fault.kind for seed in range(300) for fault in plan(World.rng_of(seed, "plan"), EVERY_FAULT, 2.0)}
    assert drawn == set(EVERY_FAULT), "every kind occurs in some seed"
