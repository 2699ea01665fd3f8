"""Certificates that the configs of a broker name. Rules: security.md A9 to A11."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.config.node import NodeConfig
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.changes import Delta
from fenceline.metadata.image import ConfigResource, ConfigResourceType, MetadataImage
from fenceline.node.net import watched_context
from fenceline.node.net.certificates import NodeCertificates
from fenceline.node.net.watched_context import WatchedContext
from fenceline.tls.client_contexts import client_context
from fenceline.tls.server_contexts import server_context
from tests.node.api.handlers.fakes import image_of
from tests.support.certificates import TestAuthority

KEYSTORE, TRUSTSTORE = "ssl.keystore.location", "ssl.truststore.location"
INTERNAL, CLIENT = "listener.name.internal.", "listener.name.client."


class Stage:
    """Node 1 with the listeners INTERNAL, for brokers, and CLIENT; a test writes its configs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        for name in ("a", "b"):
            (folder / name).mkdir()
        self.authority, self.other = TestAuthority(folder / "a"), TestAuthority(folder / "b")
        self.first = self.authority.identity("node", "node.test", file="first")
        self.second = self.authority.identity("node", "node.test", file="second")
        self.config = NodeConfig.load(
            None,
            {
                "listeners": "INTERNAL://:1,CLIENT://:2",
                "advertised.listeners": "INTERNAL://h:1,CLIENT://h:2",
                "listener.security.protocol.map": "INTERNAL:SSL,CLIENT:SSL,CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name": "INTERNAL",
                "ssl.keystore.type": "PEM",
                "ssl.truststore.type": "PEM",
                KEYSTORE: str(self.first),
                TRUSTSTORE: str(self.authority.ca),
                "ssl.client.auth": "required",
            },
            {},
        )
        self.events: list[tuple[str, dict[str, Any]]] = []

        def note(event: str, **fields: Any) -> None:
            self.events.append((event, fields))

        monkeypatch.setattr(watched_context, "log", SimpleNamespace(info=note, warning=note, error=note))
        self.is_behind = False
        self.certificates = NodeCertificates(self.config)
        self.certificates.follow(self)
        self.internal, self.client = (self.watch(name) for name in ("INTERNAL", "CLIENT"))
        self.outgoing = self.certificates.watch("INTERNAL", client_context, is_own=False)

    def watch(self, listener: str) -> WatchedContext:
        return self.certificates.watch(listener, server_context, is_own=True)

    # As the controller's driver:

    def subscribe(self, listener: Callable[[MetadataImage, Delta], None]) -> None:
        self._listener = listener

    def next_change(self) -> asyncio.Future[None]:
        self._change = asyncio.get_running_loop().create_future()
        return self._change

    def caught_up(self) -> None:
        self.is_behind = False
        self._change.set_result(None)

    def publish(self, overrides: Mapping[str, str], broker: str = "1") -> None:
        """An image with these configs of a broker."""
        resource = ConfigResource(ConfigResourceType.BROKER, broker)
        self._listener(image_of(configs={resource: dict(overrides)}), Delta(changed_configs=(resource,)))

    async def tell(self, overrides: Mapping[str, str], broker: str = "1") -> None:
        """Publish, and wait until the node has read the stores."""
        self.publish(overrides, broker)
        await asyncio.sleep(0)
        await self.certificates.settled()

    async def refused(self, overrides: Mapping[str, str], *named: str) -> str | None:
        """The message, if the broker refuses these configs."""
        try:
            await self.certificates.check(overrides, named or overrides)
        except PeerError as error:
            return error.message if error.code is ErrorCode.INVALID_REQUEST else error.code.name
        return None

    def uses(self, watched: WatchedContext, identity: Path) -> bool:
        assert watched.material.identity is not None
        return watched.material.identity.chain_pem in identity.read_bytes().replace(b"\r\n", b"\n")


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 30))


def test_configs_take_precedence_for_accepted_and_own_connections_of_their_listener(stage: Stage) -> None:
    async def story() -> None:
        before = [watched.for_connection() for watched in (stage.internal, stage.outgoing, stage.client)]
        await stage.tell({INTERNAL + KEYSTORE: str(stage.second)})
        for watched in (stage.internal, stage.outgoing):
            assert stage.uses(watched, stage.second)
            assert watched.for_connection() not in before
        assert stage.client.for_connection() is before[2]
        await stage.tell({})
        assert stage.uses(stage.internal, stage.first), "the node's file, again"

    run(story)


def test_configs_of_other_brokers_and_of_all_have_no_effect(stage: Stage) -> None:
    async def story() -> None:
        for broker in ("", "2"):
            await stage.tell({INTERNAL + KEYSTORE: str(stage.second)}, broker)
        await stage.tell({KEYSTORE: str(stage.second), "listener.name.INTERNAL." + KEYSTORE: str(stage.second)})
        assert stage.uses(stage.internal, stage.first)
        assert stage.events == []

    run(story)


def test_listener_that_opens_later_uses_what_is_known(stage: Stage) -> None:
    async def story() -> None:
        await stage.tell({CLIENT + KEYSTORE: str(stage.second)})
        late = stage.watch("CLIENT")
        assert stage.uses(late, stage.first)
        await stage.certificates.settled()
        assert stage.uses(late, stage.second)

    run(story)


def test_older_configs_are_not_tried_while_the_node_catches_up(stage: Stage) -> None:
    async def story() -> None:
        stage.is_behind = True
        await stage.tell({INTERNAL + KEYSTORE: "/gone.pem"})
        await stage.tell({INTERNAL + KEYSTORE: str(stage.second)})
        assert stage.uses(stage.internal, stage.first)
        stage.caught_up()
        await asyncio.sleep(0)
        await stage.certificates.settled()
        assert stage.uses(stage.internal, stage.second)
        assert {event for event, _ in stage.events} == {"certificates exchanged"}

    run(story)


def test_change_during_a_look_is_not_missed(stage: Stage) -> None:
    async def story() -> None:
        for path in (stage.second, stage.first):
            stage.publish({INTERNAL + KEYSTORE: str(path)})
            await asyncio.sleep(0)
        await stage.certificates.settled()
        assert stage.uses(stage.internal, stage.first)
        assert len(stage.events) == 4, "both contexts of the listener, twice"

    run(story)


def test_unusable_store_in_the_metadata_keeps_the_certificate_and_is_logged(stage: Stage) -> None:
    async def story() -> None:
        await stage.certificates.started()
        before = stage.internal.for_connection()
        await stage.tell({INTERNAL + KEYSTORE: "/nowhere.pem"})
        assert stage.internal.for_connection() is before
        assert [event for event, _ in stage.events] == ["certificates not exchanged"] * 2
        await stage.tell({INTERNAL + KEYSTORE: str(stage.other.identity("node", "node.test"))})
        assert stage.internal.for_connection() is before, "other nodes would not trust it"

    run(story)


def test_start_does_not_compare_with_the_file_of_the_node(stage: Stage) -> None:
    """Since it was written, the authorities of all nodes may have been exchanged in steps."""
    stores = {
        INTERNAL + KEYSTORE: str(stage.other.identity("node", "other.test")),
        INTERNAL + TRUSTSTORE: str(stage.other.ca),
    }

    async def story() -> None:
        await stage.tell({**stores, INTERNAL + TRUSTSTORE: str(stage.authority.ca)})
        assert stage.uses(stage.internal, stage.first), "it does not trust itself"
        await stage.tell(stores)
        assert stage.uses(stage.internal, Path(stores[INTERNAL + KEYSTORE]))
        await stage.certificates.started()
        await stage.tell({})
        assert stage.uses(stage.internal, Path(stores[INTERNAL + KEYSTORE])), "refused, and logged"

    run(story)


def test_same_path_is_read_again_when_it_is_set_again(stage: Stage) -> None:
    async def story() -> None:
        await stage.tell({CLIENT + KEYSTORE: str(stage.second)})
        third = stage.authority.identity("node", "node.test", file="third")
        os.replace(third, stage.second)
        await stage.tell({CLIENT + KEYSTORE: str(stage.second)})
        assert stage.uses(stage.client, stage.second)

    run(story)


def test_checks_before_configs_are_stored(stage: Stage) -> None:
    named, moved = (
        str(stage.authority.identity("other", "node.test", file="named")),
        str(stage.authority.identity("node", "b.test", file="moved")),
    )
    foreign = str(stage.other.identity("node", "node.test"))
    half = stage.folder / "half.pem"
    half.write_bytes(stage.first.read_bytes()[:500])
    mixed = stage.folder / "mixed.pem"
    parts = [each.read_bytes().split(b"-----BEGIN CERTIFICATE", 1) for each in (stage.first, stage.second)]
    mixed.write_bytes(parts[0][0] + b"-----BEGIN CERTIFICATE" + parts[1][1])
    os.mkfifo(stage.folder / "fifo")
    secrets = stage.second.read_text()

    async def story() -> None:
        for prefix, key, value, reason in (
            (CLIENT, KEYSTORE, str(stage.second), None),
            (CLIENT, KEYSTORE, foreign, None),
            (INTERNAL, KEYSTORE, str(stage.second), None),
            (INTERNAL, KEYSTORE, foreign, "cannot connect to one with the old"),
            (INTERNAL, TRUSTSTORE, str(stage.other.ca), "cannot connect to one with the"),
            (CLIENT, TRUSTSTORE, str(stage.other.ca), None),
            (CLIENT, KEYSTORE, named, "ssl.allow.dn.changes"),
            (CLIENT, KEYSTORE, moved, "ssl.allow.san.changes"),
            (CLIENT, KEYSTORE, "/nowhere.pem", "No such file"),
            (CLIENT, KEYSTORE, "/dev/zero", "not a regular file"),
            (CLIENT, KEYSTORE, str(stage.folder), "cannot be read"),
            (CLIENT, KEYSTORE, str(stage.folder / "fifo"), "not a regular file"),
            (CLIENT, KEYSTORE, "a\0b", "Check the files"),
            (CLIENT, KEYSTORE, str(half), "no certificate"),
            (CLIENT, KEYSTORE, str(mixed), "does not fit"),
            (CLIENT, KEYSTORE, "", "cannot be removed"),
            (CLIENT, TRUSTSTORE, "", "cannot be removed"),
            (CLIENT, "ssl.keystore.type", "JKS", "ssl.keystore.password is missing"),
            (CLIENT, "ssl.keystore.password", "hush", "has no store password"),
            (CLIENT, "ssl.keystore.key", secrets, "both set"),
            ("listener.name.other.", KEYSTORE, "/nowhere.pem", None),
        ):
            message = await stage.refused({prefix + key: value})
            assert (message is None) == (reason is None), (key, value, message)
            if reason is not None:
                assert message is not None
                assert reason in message
                assert "hush" not in message
                assert "PRIVATE" not in message
        assert stage.events == [], "nothing was exchanged"

    run(story)


def test_only_named_or_changed_stores_are_checked(stage: Stage) -> None:
    async def story() -> None:
        known = {CLIENT + KEYSTORE: str(stage.second)}
        await stage.tell(known)
        stage.second.write_bytes(b"damaged")
        assert await stage.refused({**known, "log.cleaner.threads": "2"}, "log.cleaner.threads") is None
        assert await stage.refused(known, CLIENT + KEYSTORE) is not None
        stage.first.write_bytes(b"damaged")
        assert await stage.refused({}, "log.cleaner.threads") is not None, "the node's file would be used again"

    run(story)
