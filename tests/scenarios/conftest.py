"""Fixtures of scenarios that share them: a cluster whose brokers are restarted, and clients that do not log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fenceline.local_cluster.cluster import LocalCluster
from tests.support import client_threads
from tests.support.replicated_chaos import GROUPS, SOON_MISSED


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, overrides={**SOON_MISSED, **GROUPS}) as running:
        yield running


@pytest.fixture
def quiet_clients() -> Iterator[None]:
    with client_threads.quiet_clients():
        yield
