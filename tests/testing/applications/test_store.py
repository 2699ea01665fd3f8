"""A store outside of Kafka: writes are atomic, may happen without an answer, and can be conditional."""

from __future__ import annotations

import asyncio

from fenceline.testing.applications.store import SimulatedStore, StoreConflict, StoreUnavailable
from fenceline.testing.applications.story_world import StoryWorld
from tests.testing.applications.test_application import passes


def test_it_keeps_what_was_written() -> None:
    async def story(world: StoryWorld) -> None:
        store = world.store("s")
        await store.write({"a/1": b"1", "a/2": b"2", "b": b"3"})
        await store.write({"a/2": None})
        assert await store.get("a/1") == b"1"
        assert await store.get("a/2") is None
        assert await store.scan("a/") == {"a/1": b"1"}
        assert [(each.by, dict(each.changes)) for each in store.writes][1:] == [("the test", {"a/2": None})]

    passes(story)


def test_a_conditional_write_changes_all_or_nothing() -> None:
    async def story(world: StoryWorld) -> None:
        store = world.store("s")
        await store.write({"x": b"1"}, expect={"x": None})
        try:
            await store.write({"x": b"2", "y": b"2"}, expect={"x": None})
        except StoreConflict:
            pass
        else:
            raise AssertionError("no conflict")
        assert store.content == {"x": b"1"}

    passes(story)


def test_a_write_happens_whose_answer_is_lost() -> None:
    async def story(world: StoryWorld) -> None:
        store = world.store("s")
        store.answers_to_lose = 1
        try:
            await store.write({"x": b"1"})
        except StoreUnavailable:
            pass
        else:
            raise AssertionError("an answer")
        assert await store.get("x") == b"1"

    passes(story)


def test_nothing_happens_while_it_is_unreachable() -> None:
    async def story(world: StoryWorld) -> None:
        store = world.store("s")
        store.is_unreachable = True
        try:
            await store.write({"x": b"1"})
        except StoreUnavailable:
            pass
        else:
            raise AssertionError("an answer")
        assert not store.content

    passes(story)


def test_a_write_on_its_way_happens_although_its_process_is_killed() -> None:
    async def writing(store: SimulatedStore) -> None:
        if await store.get("x") is None:
            await store.write({"x": b"1"})
        await asyncio.Event().wait()

    async def story(world: StoryWorld) -> None:
        store = world.store("s")
        application = world.start("writing", writing, store)
        while application.life == 1:
            await asyncio.sleep(0.0005)
            if world.rng.random() < 0.3:
                application.kill()
                await asyncio.sleep(0.05)
        await world.until(lambda: "x" in store.content)
        assert len(store.writes) == 1

    passes(story)
