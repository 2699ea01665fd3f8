"""Delegation tokens at the controller. Answers are those of Apache Kafka 4.3.1. Rules: security.md A32 to A36."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from fenceline.controller.controller import Controller
from fenceline.controller.requests import (
    CreatedDelegationToken,
    CreateDelegationToken,
    ExpireDelegationToken,
    RemoveExpiredTokens,
    RenewDelegationToken,
    Request,
)
from fenceline.controller.state import MAX_RECORDS, ControllerSettings
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.features import METADATA_VERSION
from fenceline.metadata.image import EMPTY_IMAGE
from fenceline.metadata.records import FeatureLevelRecord
from fenceline.metadata.security_records import DelegationTokenRecord, RemoveDelegationTokenRecord

DAY_MS = 86_400_000
ANNA, OTTO, EVE = "User:anna", "User:otto", "User:eve"
LONGEST = 2**63 - 1


class Stage:
    """`now_ms` is the wall clock."""

    def __init__(self, level: int = 30, secret: bytes = b"secret of the nodes", **settings: int) -> None:
        self.controller = Controller(ControllerSettings("cluster", token_secret=secret, **settings))
        self.controller.activate(EMPTY_IMAGE, 0, 0)
        self.now_ms = 1_000_000
        self._write([FeatureLevelRecord(METADATA_VERSION, level)])

    def _write(self, records: Any) -> None:
        self.controller.replay(records, self.controller.next_offset + len(records) - 1, 1)

    def ask(self, request: Request) -> Any:
        self.decision = self.controller.decide(request, 0, Random(len(self.tokens)))
        if self.decision.records:
            self._write(list(self.decision.records))
        return self.decision.answer

    @property
    def tokens(self) -> Any:
        return self.controller.image.delegation_tokens

    def create(
        self, requester: str = ANNA, owner: str | None = None, renewers: tuple[str, ...] = (), max_lifetime_ms: int = -1
    ) -> CreatedDelegationToken:
        made = self.ask(CreateDelegationToken(requester, owner or requester, renewers, max_lifetime_ms, self.now_ms))
        assert isinstance(made, CreatedDelegationToken)
        return made

    def renew(self, hmac: bytes, period_ms: int = -1, by: str = ANNA) -> int:
        return int(self.ask(RenewDelegationToken(by, hmac, period_ms, self.now_ms)).expiry_ms)

    def expire(self, hmac: bytes, period_ms: int, by: str = ANNA) -> int:
        return int(self.ask(ExpireDelegationToken(by, hmac, period_ms, self.now_ms)).expiry_ms)

    def remove_expired(self) -> set[str]:
        before = set(self.tokens)
        self.ask(RemoveExpiredTokens(self.now_ms))
        return before - set(self.tokens)


def refused(error: Any) -> int:
    return int(error.value.code)


def test_a_token_and_its_hmac() -> None:
    stage = Stage()
    made = stage.create(renewers=(OTTO,))
    assert dict(stage.tokens) == {made.token.token_id: made.token}
    assert made.token == DelegationTokenRecord(
        ANNA, ANNA, (OTTO,), stage.now_ms, stage.now_ms + 7 * DAY_MS, stage.now_ms + DAY_MS, made.token.token_id
    )
    assert made.hmac == hmac.digest(b"secret of the nodes", made.token.token_id.encode(), hashlib.sha512)
    assert made.hmac.hex() not in repr(stage.decision)
    assert len(made.token.token_id) == 22


@pytest.mark.parametrize(
    ("max_lifetime_ms", "expected"),
    [
        (-1, (7 * DAY_MS, DAY_MS)),
        (0, (7 * DAY_MS, DAY_MS)),
        (LONGEST, (7 * DAY_MS, DAY_MS)),
        (2 * DAY_MS, (2 * DAY_MS, DAY_MS)),
        (5_000, (5_000, 5_000)),
    ],
)
def test_lifetimes(max_lifetime_ms: int, expected: tuple[int, int]) -> None:
    stage = Stage()
    token = stage.create(max_lifetime_ms=max_lifetime_ms).token
    assert (token.max_timestamp - stage.now_ms, token.expiration_timestamp - stage.now_ms) == expected


def test_lifetimes_beyond_the_range_of_times() -> None:
    stage = Stage(token_max_lifetime_ms=LONGEST, token_expiry_ms=LONGEST)
    token = stage.create().token
    assert (token.max_timestamp, token.expiration_timestamp) == (LONGEST, LONGEST)
    assert stage.expire(stage.create().hmac, LONGEST) == LONGEST


def test_owner_and_requester_may_differ() -> None:
    token = Stage().create(requester=OTTO, owner=ANNA).token
    assert (token.owner, token.requester) == (ANNA, OTTO)


@pytest.mark.parametrize(
    ("period_ms", "expected"), [(-1, DAY_MS), (0, DAY_MS), (60_000, 60_000), (9 * DAY_MS, DAY_MS), (LONGEST, DAY_MS)]
)
def test_renewing(period_ms: int, expected: int) -> None:
    stage = Stage()
    made = stage.create()
    stage.now_ms += 1_000
    assert stage.renew(made.hmac, period_ms) == stage.now_ms + expected
    assert dict(stage.tokens) == {
        made.token.token_id: replace(made.token, expiration_timestamp=stage.now_ms + expected)
    }


def test_renewing_ends_with_the_longest_lifetime() -> None:
    stage = Stage()
    made = stage.create(max_lifetime_ms=10_000)
    stage.now_ms += 9_000
    assert stage.renew(made.hmac) == made.token.max_timestamp


def test_renewers_may_renew_and_requesters_must_not() -> None:
    stage = Stage()
    made = stage.create(requester=EVE, owner=ANNA, renewers=(OTTO,))
    for allowed in (ANNA, OTTO):
        stage.renew(made.hmac, by=allowed)
        stage.expire(made.hmac, 1_000, by=allowed)
    for wrong in (EVE, "Group:anna", "anna"):
        with pytest.raises(PeerError) as error:
            stage.renew(made.hmac, by=wrong)
        assert refused(error) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        with pytest.raises(PeerError) as error:
            stage.expire(made.hmac, -1, by=wrong)
        assert refused(error) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


def test_expiring_may_extend() -> None:
    """Beyond delegation.token.expiry.time.ms, as in Kafka, but not beyond the longest lifetime."""
    stage = Stage()
    made = stage.create()
    assert stage.expire(made.hmac, 0) == stage.now_ms
    assert stage.expire(made.hmac, 3 * DAY_MS) == stage.now_ms + 3 * DAY_MS
    assert stage.expire(made.hmac, 30 * DAY_MS) == made.token.max_timestamp


def test_a_negative_period_removes_the_token_even_if_it_has_expired() -> None:
    stage = Stage()
    made = stage.create()
    stage.now_ms += 8 * DAY_MS
    assert stage.expire(made.hmac, -5) == stage.now_ms
    assert list(stage.decision.records) == [RemoveDelegationTokenRecord(made.token.token_id)]
    assert not stage.tokens
    with pytest.raises(PeerError) as error:
        stage.expire(made.hmac, -5)
    assert refused(error) == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_an_expired_token_cannot_be_brought_back() -> None:
    stage = Stage()
    made = stage.create()
    stage.now_ms = made.token.expiration_timestamp
    stage.expire(made.hmac, 0)
    stage.now_ms += 1
    for call in (lambda: stage.renew(made.hmac), lambda: stage.expire(made.hmac, 1_000)):
        with pytest.raises(PeerError) as error:
            call()
        assert refused(error) == ErrorCode.DELEGATION_TOKEN_EXPIRED


def test_order_of_refusals() -> None:
    """Renew looks at the expiry first, Expire at who asks, as in Kafka."""
    stage = Stage()
    made = stage.create()
    stage.now_ms += 2 * DAY_MS
    with pytest.raises(PeerError) as error:
        stage.renew(made.hmac, by=EVE)
    assert refused(error) == ErrorCode.DELEGATION_TOKEN_EXPIRED
    with pytest.raises(PeerError) as error:
        stage.expire(made.hmac, 1, by=EVE)
    assert refused(error) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


@pytest.mark.parametrize(
    ("level", "secret", "code"),
    [
        (30, b"", ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED),
        (13, b"", ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED),
        (13, b"secret", ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_tokens_that_are_off(level: int, secret: bytes, code: ErrorCode) -> None:
    stage = Stage(level, secret)
    for call in (stage.create, lambda: stage.renew(b"hmac"), lambda: stage.expire(b"hmac", 1)):
        with pytest.raises(PeerError) as error:
            call()
        assert refused(error) == code


@pytest.mark.parametrize("hmac", [b"", b"x", bytes(64)])
def test_unknown_hmac(hmac: bytes) -> None:
    stage = Stage()
    stage.create()
    with pytest.raises(PeerError) as error:
        stage.renew(hmac)
    assert refused(error) == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_principals_are_bounded() -> None:
    """Any user may name renewers; Kafka fails with its largest batch."""
    with pytest.raises(PeerError) as error:
        Stage().create(renewers=("User:" + "x" * 65_536,))
    assert refused(error) == ErrorCode.INVALID_REQUEST


def test_the_sweep_removes_expired_tokens() -> None:
    stage = Stage()
    short, long = stage.create(max_lifetime_ms=1_000), stage.create()
    stage.now_ms += 1_000
    assert stage.remove_expired() == set(), "the last millisecond"
    stage.now_ms += 1
    assert stage.remove_expired() == {short.token.token_id}
    assert not stage.decision.answer.more
    with pytest.raises(PeerError):
        stage.renew(short.hmac)
    stage.renew(long.hmac)


def test_the_sweep_is_bounded() -> None:
    stage = Stage()
    count = MAX_RECORDS + 1
    for number in range(0, count, 1_000):
        records = [
            DelegationTokenRecord(ANNA, ANNA, (), 1, 2, 2, f"token-{each}")
            for each in range(number, min(number + 1_000, count))
        ]
        stage._write(records)
    stage.ask(RemoveExpiredTokens(stage.now_ms))
    assert (len(stage.tokens), stage.decision.answer.more) == (1, True)
    stage.ask(RemoveExpiredTokens(stage.now_ms))
    assert (len(stage.tokens), stage.decision.answer.more) == (0, False)


def test_another_controller_finds_the_tokens() -> None:
    """The index of hmacs is built from the image (C2)."""
    stage = Stage()
    made = stage.create()
    another = Controller(ControllerSettings("cluster", token_secret=b"secret of the nodes"))
    another.activate(stage.controller.image, stage.controller.next_offset, 0)
    stage.controller = another
    stage.renew(made.hmac)
    later = stage.create()
    another.reset(stage.controller.image, stage.controller.next_offset)
    stage.renew(later.hmac)


def test_secrets_are_not_printed() -> None:
    assert "secret of" not in repr(ControllerSettings("cluster", token_secret=b"secret of the nodes"))
    for request in (RenewDelegationToken(ANNA, b"hush", 1, 1), ExpireDelegationToken(ANNA, b"hush", 1, 1)):
        assert "hush" not in repr(request)
