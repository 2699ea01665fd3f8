"""Changes of SCRAM credentials. Answers are those of Apache Kafka 4.3.1, where it is not too lax. Rules: security.md
A25, A37, A69."""

from __future__ import annotations

import pytest

from fenceline.controller.requests import AlterUserScram, ScramDeletion, ScramUpsertion
from fenceline.controller.scram_credentials import alter_user_scram
from fenceline.controller.state import ControllerSettings, ControllerState
from fenceline.errors import ErrorCode
from fenceline.metadata.features import METADATA_VERSION
from fenceline.metadata.image import EMPTY_IMAGE
from fenceline.metadata.records import FeatureLevelRecord
from fenceline.metadata.security_records import RemoveUserScramCredentialRecord, UserScramCredentialRecord

SALT, SALTED = b"s" * 16, b"p" * 32


def upsertion(
    name: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = SALT, salted: bytes = SALTED
) -> ScramUpsertion:
    return ScramUpsertion(name, mechanism, iterations, salt, salted)


class Stage:
    def __init__(self, level: int = 30) -> None:
        self.state = ControllerState(ControllerSettings("cluster"))
        self.state.reset(EMPTY_IMAGE, 0)
        self.state.replay([FeatureLevelRecord(METADATA_VERSION, level)], 0, 1)
        self._end = 0

    def alter(self, *changes: ScramDeletion | ScramUpsertion) -> dict[str, tuple[int, str | None]]:
        deletions = tuple(each for each in changes if isinstance(each, ScramDeletion))
        upsertions = tuple(each for each in changes if isinstance(each, ScramUpsertion))
        self.decision = alter_user_scram(self.state, AlterUserScram(deletions, upsertions))
        if self.decision.records:
            self._end += len(self.decision.records)
            self.state.replay(list(self.decision.records), self._end, 1)
        return {name: (outcome.code, outcome.message) for name, outcome in self.decision.answer.users}


def test_credentials_are_set_changed_and_removed() -> None:
    stage = Stage()
    assert stage.alter(upsertion("a"), upsertion("b", 2, salted=b"p" * 64)) == {"a": (0, None), "b": (0, None)}
    assert set(stage.state.image.scram) == {("a", 1), ("b", 2)}
    [first, _] = stage.decision.records
    assert isinstance(first, UserScramCredentialRecord)
    assert SALTED not in (first.stored_key, first.server_key)
    assert stage.alter(upsertion("a", iterations=8192)) == {"a": (0, None)}
    assert stage.state.image.scram["a", 1].iterations == 8192
    assert stage.alter(ScramDeletion("a", 1)) == {"a": (0, None)}
    assert list(stage.decision.records) == [RemoveUserScramCredentialRecord("a", 1)]
    assert set(stage.state.image.scram) == {("b", 2)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([ScramDeletion("b", 1)], (91, "Attempt to delete a user credential that does not exist")),
        ([ScramDeletion("a", 2)], (91, "Attempt to delete a user credential that does not exist")),
        ([ScramDeletion("a", 0)], (33, "Unknown SCRAM mechanism")),
        ([upsertion("a", 3)], (33, "Unknown SCRAM mechanism")),
        ([upsertion("a", -1)], (33, "Unknown SCRAM mechanism")),
        ([upsertion("")], (93, "Username must not be empty")),
        ([upsertion("a", iterations=4095)], (93, "Too few iterations")),
        ([upsertion("a", iterations=16385)], (93, "Too many iterations")),
        (
            [upsertion("a"), upsertion("a", 2, salted=b"p" * 64)],
            (92, "A user credential cannot be altered twice in the same request"),
        ),
        (
            [ScramDeletion("a", 1), upsertion("a")],
            (92, "A user credential cannot be altered twice in the same request"),
        ),
        ([upsertion("a", salt=b"")], (93, "The salt must not be empty")),
        ([upsertion("a", salted=b"")], (93, "The salted password of SCRAM-SHA-256 must have 32 bytes")),
        ([upsertion("a", 2)], (93, "The salted password of SCRAM-SHA-512 must have 64 bytes")),
    ],
)
def test_refusals_change_nothing(changes: list[ScramDeletion | ScramUpsertion], expected: tuple[int, str]) -> None:
    stage = Stage()
    stage.alter(upsertion("a"))
    before = stage.state.image.scram
    outcomes = stage.alter(*changes, upsertion("other"))
    assert outcomes.pop("other") == (0, None)
    assert list(outcomes.values()) == [expected]
    assert {key: value for key, value in stage.state.image.scram.items() if key[0] != "other"} == dict(before)


def test_old_metadata_version() -> None:
    assert Stage(10).alter(upsertion("a")) == {
        "a": (ErrorCode.UNSUPPORTED_VERSION, "The current metadata version does not support SCRAM")
    }


def test_secrets_are_not_printed() -> None:
    request = AlterUserScram((), (upsertion("anna"),))
    assert "ppp" not in repr(request)
