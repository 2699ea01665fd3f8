"""Certificates that are exchanged in a running node. Rules: security.md A10, A69."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from fenceline.errors import OperatorError
from fenceline.node.net import watched_context
from fenceline.node.net.watched_context import WatchedContext
from fenceline.tls.client_contexts import client_context
from fenceline.tls.server_contexts import server_context


class Stage:
    """A listener whose certificate files a test replaces."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file, self._ca = folder / "node.pem", folder / "ca.pem"
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(str(self._ca))
        self.issue("node")
        self.settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._file),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._ca),
            "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
            "ssl.client.auth": "required",
        }
        self.now_s = 0.0
        self.events: list[tuple[str, dict[str, Any]]] = []

        def note(event: str, **fields: Any) -> None:
            self.events.append((event, fields))

        monkeypatch.setattr(watched_context, "log", SimpleNamespace(info=note, warning=note, error=note))
        self.watched = WatchedContext(self.settings.get, "SSL", server_context, now_s=lambda: self.now_s)

    def issue(self, name: str, *hosts: str, **fields: Any) -> None:
        issued = self.authority.issue_cert(
            *(hosts or ("node.test",)), common_name=name, organization_unit_name="tests", **fields
        )
        self.write(issued.private_key_and_cert_chain_pem.bytes())

    def write(self, content: bytes) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_bytes(content)
        os.replace(fresh, self._file)

    async def context(self, *, after_s: float = 10) -> ssl.SSLContext:
        """That of a connection after the files were looked at."""
        self.now_s += after_s
        self.watched.for_connection()
        while self.watched._looking is not None:
            await self.watched._looking
        return self.watched.for_connection()

    @property
    def name(self) -> str:
        assert self.watched.material.identity is not None
        return self.watched.material.identity.name


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 30))


def test_unchanged_files_are_not_read(stage: Stage) -> None:
    async def story() -> None:
        before = stage.watched.for_connection()
        assert await stage.context() is before
        assert stage.events == []

    run(story)


def test_new_certificate_is_used_within_ten_seconds(stage: Stage) -> None:
    async def story() -> None:
        before, old = stage.watched.for_connection(), stage.watched.material
        stage.issue("node")
        assert await stage.context(after_s=9) is before
        assert await stage.context(after_s=1) is not before
        assert stage.watched.material.identity != old.identity
        assert [event for event, _ in stage.events] == ["certificates exchanged"]

    run(story)


@pytest.mark.parametrize(
    ("name", "hosts", "key", "reason"),
    [
        ("other", ("node.test",), "ssl.allow.dn.changes", "is of .*CN=other"),
        ("node", ("other.test",), "ssl.allow.san.changes", r"lacks the alternative names node\.test"),
    ],
)
def test_certificate_of_another_name_needs_permission(
    stage: Stage, name: str, hosts: tuple[str, ...], key: str, reason: str
) -> None:
    async def story() -> None:
        before = stage.watched.for_connection()
        stage.issue(name, *hosts)
        assert await stage.context() is before
        [(event, fields)] = stage.events
        assert event == "certificates not exchanged"
        assert re.search(reason, fields["reason"])
        assert key in fields["advice"]
        stage.settings[key] = "true"
        stage.issue(name, *hosts)
        assert await stage.context() is not before

    run(story)


def test_unusable_files_change_nothing_and_are_reported_once(stage: Stage) -> None:
    async def story() -> None:
        before = stage.watched.for_connection()
        stage.write(b"half a certifica")
        for _ in range(3):
            assert await stage.context() is before
        assert [event for event, _ in stage.events] == ["certificates not exchanged"]
        stage.issue("node")
        assert await stage.context() is not before

    run(story)


def test_added_authority_is_trusted(stage: Stage, tmp_path: Path) -> None:
    async def story() -> None:
        other = trustme.CA()
        with (tmp_path / "ca.pem").open("ab") as trusted:
            trusted.write(other.cert_pem.bytes())
        await stage.context()
        assert stage.watched.material.trusted is not None
        assert len(stage.watched.material.trusted) == 2

    run(story)


def test_warning_before_a_certificate_expires(stage: Stage) -> None:
    from datetime import UTC, datetime, timedelta

    async def story() -> None:
        stage.issue("node", not_after=datetime.now(UTC) + timedelta(days=29))
        await stage.context()
        await stage.context()
        await stage.context(after_s=24 * 3600)
        warnings = [fields for event, fields in stage.events if "expires soon" in event]
        assert len(warnings) == 2, "once a day"
        assert stage.watched.expires is not None

    run(story)


def test_client_needs_no_certificate_of_its_own(stage: Stage) -> None:
    del stage.settings["ssl.keystore.location"]
    assert WatchedContext(stage.settings.get, "SSL", client_context).expires is None
    with pytest.raises(OperatorError, match="TLS needs a certificate"):
        WatchedContext(stage.settings.get, "SSL", server_context)
