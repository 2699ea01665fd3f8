"""Changes of users' SCRAM credentials.

Owns the checks of AlterUserScramCredentials. Never sees a password: clients send it salted and hashed.

Rules: security.md A25, A37, A69; controller.md C43.
"""

from __future__ import annotations

from typing import Final

from fenceline.controller.requests import (
    SUCCESS,
    AlterUserScram,
    AlterUserScramAnswer,
    NamedOutcome,
    RequestOutcome,
    ScramDeletion,
    ScramUpsertion,
)
from fenceline.controller.state import ControllerState, Decision
from fenceline.errors import ErrorCode
from fenceline.metadata.features import METADATA_VERSION
from fenceline.metadata.records import MetadataRecord
from fenceline.metadata.security_records import RemoveUserScramCredentialRecord, UserScramCredentialRecord
from fenceline.sasl.scram import (
    FEWEST_ITERATIONS,
    MOST_STORED_ITERATIONS,
    NUMBERS,
    credential_of,
    digest_size,
)

_MV_SCRAM: Final = 11
"""3.5-IV2."""
_MECHANISMS: Final = {number: name for name, number in NUMBERS.items()}
_TWICE: Final = RequestOutcome(
    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
)
_NO_NAME: Final = RequestOutcome(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
_UNKNOWN: Final = RequestOutcome(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
_ABSENT: Final = RequestOutcome(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
_TOO_OLD: Final = RequestOutcome(ErrorCode.UNSUPPORTED_VERSION, "The current metadata version does not support SCRAM")


def alter_user_scram(state: ControllerState, request: AlterUserScram) -> Decision:
    """Each user succeeds or fails separately; one that is named twice fails."""
    changes: tuple[ScramDeletion | ScramUpsertion, ...] = (*request.deletions, *request.upsertions)
    failed: dict[str, RequestOutcome] = {}
    chosen: dict[str, ScramDeletion | ScramUpsertion] = {}
    for change in changes:
        outcome = _fault(state, change)
        if outcome is None and change.name in chosen:
            outcome = _TWICE
        if outcome is None:
            chosen[change.name] = change
        else:
            failed.setdefault(change.name, outcome)
    records = [_record(change) for name, change in chosen.items() if name not in failed]
    done = [NamedOutcome(name, SUCCESS) for name in chosen if name not in failed]
    outcomes = (*done, *(NamedOutcome(name, outcome) for name, outcome in failed.items()))
    return Decision(records, AlterUserScramAnswer(outcomes))


def _fault(state: ControllerState, change: ScramDeletion | ScramUpsertion) -> RequestOutcome | None:
    if state.image.features.get(METADATA_VERSION, 0) < _MV_SCRAM:
        return _TOO_OLD
    if not change.name:
        return _NO_NAME
    mechanism = _MECHANISMS.get(change.mechanism)
    if mechanism is None:
        return _UNKNOWN
    if isinstance(change, ScramDeletion):
        return None if (change.name, change.mechanism) in state.image.scram else _ABSENT
    if change.iterations < FEWEST_ITERATIONS:
        return _unacceptable("Too few iterations")
    if change.iterations > MOST_STORED_ITERATIONS:
        return _unacceptable("Too many iterations")
    # Kafka stores such credentials, although they cannot be used to log in.
    if not change.salt:
        return _unacceptable("The salt must not be empty")
    if len(change.salted_password) != digest_size(mechanism):
        return _unacceptable(f"The salted password of {mechanism} must have {digest_size(mechanism)} bytes")
    return None


def _unacceptable(reason: str) -> RequestOutcome:
    return RequestOutcome(ErrorCode.UNACCEPTABLE_CREDENTIAL, reason)


def _record(change: ScramDeletion | ScramUpsertion) -> MetadataRecord:
    if isinstance(change, ScramDeletion):
        return RemoveUserScramCredentialRecord(change.name, change.mechanism)
    made = credential_of(_MECHANISMS[change.mechanism], change.salted_password, change.salt, change.iterations)
    return UserScramCredentialRecord(
        change.name, change.mechanism, made.salt, made.stored_key, made.server_key, made.iterations
    )
