"""The table of errors and that of phases are the rules' (`transactions.md` X53 to X55), cell by cell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fenceline.client.core.errors import RETRIABLE, ProducerFenced, TransactionFailed, broker_error
from fenceline.client.producer.transaction_errors import Reaction, TransactionRequest, failed, reaction_to
from fenceline.client.producer.transaction_state import PREDECESSORS, TransactionPhase
from fenceline.errors import ErrorCode

_RULES = (Path(__file__).parents[3] / "docs/rules/transactions.md").read_text()


def _rule(number: str) -> str:
    text = _RULES.split(f"**{number}** ", 1)[1]
    return " ".join(re.split(r"\n(?:- |\n)", text, maxsplit=1)[0].split())


_NAMES = {
    "InitProducerId": [TransactionRequest.INIT_PRODUCER],
    "AddPartitions": [TransactionRequest.ADD_PARTITIONS],
    "AddOffsets": [TransactionRequest.ADD_OFFSETS],
    "EndTxn": [TransactionRequest.COMMIT, TransactionRequest.ABORT],
    "TxnOffsetCommit": [TransactionRequest.COMMIT_OFFSETS],
    "FindCoordinator": [TransactionRequest.FIND_COORDINATOR],
}


def _codes(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"\b\d+\b", text)}


def _expected() -> dict[tuple[TransactionRequest, ErrorCode], Reaction]:
    """X54 says for each request which codes abort and which fail; X55 says it for Produce."""
    found: dict[tuple[TransactionRequest, ErrorCode], Reaction] = {}
    sentences = _rule("X54").split(". ")
    assert sentences[:2] == ["Retried: retriable codes, 51; 15, 16 with a new lookup", "Fatal: 47, 90"]
    for sentence in sentences[2:]:
        name, rest = sentence.rstrip(".").split(": ")
        for request in _NAMES[name]:
            aborts, fails = re.sub(r"\(.*?\)", "", rest), ""
            if rest.index("fatal") < rest.index("abortable") if "rest abortable" in rest else False:
                fails, aborts = rest.split(" fatal")[0], ""
            else:
                aborts = aborts.split(" abortable")[0]
            for code in ErrorCode:
                usual = Reaction.ABORT if fails else Reaction.FAIL
                other = Reaction.FAIL if fails else Reaction.ABORT
                listed = code in _codes(fails or aborts)
                if "120 on abort fatal" in rest and request is TransactionRequest.ABORT and code == 120:
                    listed = False
                if code in (47, 90):
                    listed, usual = False, Reaction.FAIL
                found[request, code] = Reaction.RETRY if code in RETRIABLE else other if listed else usual
    fatal = _codes(_rule("X55").split("Produce: ")[1].split(" fatal")[0])
    for code in ErrorCode:
        reaction = Reaction.FAIL if code in fatal else Reaction.ABORT
        found[TransactionRequest.PRODUCE, code] = Reaction.RETRY if code in RETRIABLE else reaction
    return found


_EXPECTED = _expected()


def test_every_request_is_in_the_rules() -> None:
    assert {request for request, _ in _EXPECTED} == set(TransactionRequest)


@pytest.mark.parametrize("request_", list(TransactionRequest), ids=lambda each: each.name)
def test_reaction_to_every_code(request_: TransactionRequest) -> None:
    codes = [code for code in ErrorCode if code is not ErrorCode.NONE]
    assert {code: reaction_to(request_, code) for code in codes} == {code: _EXPECTED[request_, code] for code in codes}


@pytest.mark.parametrize("code", [14, 15, 16, 51])
def test_what_must_be_retried_is_retriable(code: int) -> None:
    assert ErrorCode(code) in RETRIABLE


def test_fenced_producers_have_a_class_of_their_own() -> None:
    for code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
        assert isinstance(failed(broker_error(code, "x")), ProducerFenced)
    other = failed(broker_error(ErrorCode.INVALID_TXN_STATE, "x"))
    assert isinstance(other, TransactionFailed)
    assert not isinstance(other, ProducerFenced)


def test_phases_are_kafkas_without_prepared() -> None:
    expected: dict[TransactionPhase, frozenset[TransactionPhase]] = {}
    for entry in _rule("X53").split(": ", 1)[1].split(". ")[0].split("; "):
        to, sources = entry.split(" <- ")
        if to == "PREPARED":
            continue
        if sources == "any":
            expected[TransactionPhase.FATAL] = frozenset(TransactionPhase)
            continue
        listed = [to if name == "itself" else name for name in sources.split(", ") if name != "PREPARED"]
        expected[TransactionPhase[to]] = frozenset(TransactionPhase[name] for name in listed)
    assert expected == PREDECESSORS
