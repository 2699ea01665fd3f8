"""A consumer group without members in a simulated cluster, which stores its offsets with its coordinator.

Owns its requests: commits, fetches, resets, deletion of offsets and of the group. Its coordinator moves with the leader
of a partition of `__consumer_offsets`. `group_checks` checks the responses.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fenceline.errors import ErrorCode
from fenceline.testing.simulation.brokers_clients import SimulatedClient
from fenceline.testing.simulation.brokers_wire import PartitionInfo
from fenceline.testing.simulation.group_checks import NOTHING, Commit
from fenceline.testing.simulation.operations import Operation
from fenceline.wire.apis import ApiKey

_NO_GENERATION: Final = -1
_GROUP: Final = 0
_REST_S: Final = 0.2
_REFRESH_CHANCE: Final = 0.2
"""Chance that it fetches the metadata again."""
# The names are part of the trace, and so of the hash.
_KINDS: Final = ("commit",) * 6 + ("look",) * 4 + ("reset", "delete offsets", "delete group")


class SimulatedGroup(SimulatedClient):
    """See the module."""

    name = "group"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._coordinator = -1
        self._commits = 0

    async def one_request(self) -> None:
        await asyncio.sleep(self.rng.random() * _REST_S)
        if not self.places or self.rng.random() < _REFRESH_CHANCE:
            await self.fetch_metadata()
        if self._coordinator < 0 and not await self._find():
            await self.back_off()
            return
        if not self.places:
            await asyncio.sleep(0.1)
            return
        place, kind = self.rng.choice(self.places), self.rng.choice(_KINDS)
        try:
            code = await self._ask(kind, place)
        except ConnectionError:
            self.wire.drop(self._coordinator)
            self._coordinator = -1
            raise
        self.log_event(f"{kind} {place.topic}-{place.index} by n{self._coordinator}: {code}")
        if code in (0, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            self.request_completed()
        else:
            self._coordinator = -1
            await self.back_off()

    async def _find(self) -> bool:
        fields = {"key_type": _GROUP, "coordinator_keys": [self.who]}
        answer = await self.wire.call(self.rng.choice(self.nodes), ApiKey.FIND_COORDINATOR, 4, fields)
        found = answer.coordinators[0]
        self._coordinator = -1 if found.error_code else found.node_id
        return self._coordinator >= 0

    async def _ask(self, kind: str, place: PartitionInfo) -> int:
        if kind == "look":
            return await self._fetch_committed(place)
        if kind == "delete offsets":
            return await self._delete_offsets(place)
        if kind == "delete group":
            return await self._delete_group()
        return await self._commit(place, is_reset=kind == "reset")

    async def _commit(self, place: PartitionInfo, *, is_reset: bool) -> int:
        self.record_request(Operation.RESET_OFFSETS if is_reset else Operation.COMMIT_OFFSETS, place)
        history = self.history(place)
        self._commits += 1
        end = history.end if history is not None else 0
        commit = Commit(0 if is_reset else self.rng.randint(0, end), str(self._commits))
        self.checks.positions.sends(self.who, place.key, commit)
        partition = {
            "partition_index": place.index,
            "committed_offset": commit.offset,
            "committed_leader_epoch": -1,
            "committed_metadata": commit.metadata,
        }
        fields = {
            "group_id": self.who,
            "generation_id_or_member_epoch": _NO_GENERATION,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"topic_id": place.topic_id, "partitions": [partition]}],
        }
        answer = await self.wire.call(self._coordinator, ApiKey.OFFSET_COMMIT, 10, fields)
        code = int(answer.topics[0].partitions[0].error_code)
        if not code:
            self.checks.positions.acknowledged(self.who, place.key, commit)
        return code

    async def _fetch_committed(self, place: PartitionInfo) -> int:
        self.record_request(Operation.FETCH_COMMITTED, place)
        wanted = {"topic_id": place.topic_id, "partition_indexes": [place.index]}
        group = {"group_id": self.who, "member_id": None, "member_epoch": -1, "topics": [wanted]}
        fields = {"groups": [group], "require_stable": False}
        answer = (await self.wire.call(self._coordinator, ApiKey.OFFSET_FETCH, 10, fields)).groups[0]
        if answer.error_code:
            return int(answer.error_code)
        found = answer.topics[0].partitions[0]
        if found.error_code:
            return int(found.error_code)
        commit = Commit(found.committed_offset, found.metadata) if found.committed_offset >= 0 else NOTHING
        if place.key in self.checks.live_keys:
            self.checks.positions.read(
                self.who, place.key, commit, f"n{self._coordinator}", may_be_older=self.checks.lost_commits
            )
        return 0

    async def _delete_offsets(self, place: PartitionInfo) -> int:
        """The request has the topic name: it affects whichever topic has it now."""
        self.record_request(Operation.DELETE_OFFSETS, place)
        self.checks.positions.deletes(self.who, place.key)
        partition = {"partition_index": place.index}
        fields = {"group_id": self.who, "topics": [{"name": place.topic, "partitions": [partition]}]}
        answer = await self.wire.call(self._coordinator, ApiKey.OFFSET_DELETE, 0, fields)
        if answer.error_code:
            return int(answer.error_code)
        code = int(answer.topics[0].partitions[0].error_code)
        if not code and place.key in self.checks.live_keys:
            self.checks.positions.deleted(self.who, place.key)
        return code

    async def _delete_group(self) -> int:
        self.world.coverage.operation(Operation.DELETE_GROUP)
        self.checks.positions.deletes(self.who)
        answer = await self.wire.call(self._coordinator, ApiKey.DELETE_GROUPS, 2, {"groups_names": [self.who]})
        code = int(answer.results[0].error_code)
        if not code:
            self.checks.positions.deleted(self.who)
        return code
