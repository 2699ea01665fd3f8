"""Peers that are not authenticated send whatever they like: nothing but an answer, or a closed connection.

Bytes, damaged requests, damaged logins with each mechanism, and damaged TLS records are played against the server of a
node, in this process and on a virtual clock. `make soak` plays a million of them.

Rules: security.md A12, A14 to A17, A23, A24, A27, A68, A69.
"""

from __future__ import annotations

import os
import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random

import psutil
import pytest

from tests.security.attack_inputs import PLAYS
from tests.security.attacked_server import AttackedServer, with_server

WARM_UP = 2_000
MEASURED_EVERY = 100
MOST_BYTES_OF_A_PEER = 1 << 20
MOST_GROWN_BYTES = 32 << 20


def used_bytes() -> int:
    """Also of libraries."""
    return int(psutil.Process().memory_full_info().uss)


def play(server: AttackedServer, inputs: int, seed: int) -> Counter[str]:
    """The number of inputs of each kind."""
    rng, played = Random(seed), Counter[str]()
    before_bytes = connections = 0
    while (total := played.total()) < inputs:
        if not before_bytes and total >= WARM_UP:
            before_bytes = used_bytes()
        connections += 1
        is_measured = connections % MEASURED_EVERY == 0
        chosen = rng.choice(PLAYS)
        if is_measured:
            tracemalloc.start()
        try:
            played[chosen.__name__] += chosen(rng, server)
            if is_measured:
                _, peak_bytes = tracemalloc.get_traced_memory()
                assert peak_bytes < MOST_BYTES_OF_A_PEER, "no input makes the node allocate what it announces"
        except Exception as error:
            raise AssertionError(f"seed {seed}, after {total} inputs: {chosen.__name__}") from error
        finally:
            if is_measured:
                tracemalloc.stop()
        assert not server.errors, f"seed {seed}, after {total} inputs, {chosen.__name__}: {server.errors[0]}"
    grown_bytes = used_bytes() - before_bytes
    assert grown_bytes < MOST_GROWN_BYTES, f"{grown_bytes} bytes are still used after {inputs} inputs"
    return played


@pytest.mark.parametrize("inputs", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_inputs_before_authentication(inputs: int, tmp_path: Path) -> None:
    seed = int(os.environ.get("FENCELINE_CHAOS_SEED") or 7)
    played: list[Counter[str]] = []
    with_server(tmp_path, lambda server: played.append(play(server, inputs, seed)))
    assert set(played[0]) == {each.__name__ for each in PLAYS}
