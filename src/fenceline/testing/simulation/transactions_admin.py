"""The administrator of a simulated cluster with transactional clients.

Owns the operations that concern transactions: coordinators move, producers are fenced, the level of the feature
changes, a topic with open transactions is made anew, topics are compacted. A rejected request is not retried.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from fenceline.metadata.features import TRANSACTION_VERSION
from fenceline.testing.simulation.brokers_admin import SEGMENT_BYTES, SimulatedAdmin
from fenceline.testing.simulation.brokers_transactions import COPY_ID, IDS
from fenceline.testing.simulation.transaction_wire import TRANSACTION_V2, TransactionWire
from fenceline.testing.transaction_history import ClientTransactions
from fenceline.wire.apis import ApiKey

_TIMEOUT_MS: Final = 3000
_COORDINATED: Final = (TRANSACTION_STATE_TOPIC, TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC)
_PARTITIONS: Final = 2
"""Of each internal topic."""
_SAFE_DOWNGRADE: Final = 2
_UPGRADE: Final = 1


class CoordinatorsAdmin(SimulatedAdmin):
    """See the module. Between its operations it does what every administrator does."""

    name = "admin"
    histories: ClientTransactions
    """Of all clients of the run; set before it lives."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        world, sockets, _, number, _ = args
        self.wire: TransactionWire = TransactionWire(world, sockets, -1 - number)
        self._to_roll = [TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC] if self.options.compaction else []
        """Topics that do not have small segments yet."""

    def more_configs(self, topic: str) -> dict[str, str]:
        """See `SimulatedAdmin`. Two of three topics are compacted, most as early as they can be."""
        options, rng = self.options, self.rng
        if not options.compaction or rng.random() < 0.3:
            return {}
        configs = {"cleanup.policy": "compact", SEGMENT_BYTES: str(options.segment_bytes)}
        return configs | ({"delete.retention.ms": "0"} if rng.random() < 0.7 else {})

    async def one_request(self) -> None:
        options, rng = self.options, self.rng
        if self._to_roll and self.places and await self.roll_early(self._to_roll[0]):
            self._to_roll.pop(0)
        if not self.places or not self.world.faults_active or not options.coordinate_s or rng.random() < 0.3:
            await super().one_request()
            return
        await asyncio.sleep(self.world.lasting_s(rng.expovariate(1 / options.coordinate_s)))
        kinds = ["move", "move", "move", "fence"]
        kinds += ["level"] * options.changes_level + ["recreate"] * options.deletes
        match rng.choice(kinds):
            case "move":
                await self._move()
            case "fence":
                await self._fence()
            case "level":
                await self._change_level()
            case _:
                await self.delete(self.topics[-1])
        self.request_completed()

    async def delete_only(self, topic: str) -> None:
        """See `SimulatedAdmin`."""
        self.histories.deletes(topic)
        await super().delete_only(topic)

    async def _move(self) -> None:
        """Another replica leads a partition of an internal topic, and so coordinates its ids or groups."""
        topic, index = self.rng.choice(_COORDINATED), self.rng.randrange(_PARTITIONS)
        await self.reassign(topic, index, self.rng.sample(self.nodes, len(self.nodes)))
        await self.elect(topic, index, unclean=False)

    async def _fence(self) -> None:
        """What `Admin.fenceProducers` and `kafka-transactions forceTerminateTransaction` do."""
        transactional_id = self.rng.choice((*IDS, COPY_ID))
        node_id = self.rng.choice(self.nodes)
        code, _ = await self.wire.init_producer(node_id, TRANSACTION_V2, transactional_id, 1000, None)
        self.wire.forget_coordinators()
        self.log_event(f"fences {transactional_id}: {code}")

    async def _change_level(self) -> None:
        level = self.rng.choice((0, 1, 2))
        for upgrade_type in (_UPGRADE, _SAFE_DOWNGRADE):
            update = {"feature": TRANSACTION_VERSION, "max_version_level": level, "upgrade_type": upgrade_type}
            fields = {"timeout": _TIMEOUT_MS, "feature_updates": [update], "validate_only": False}
            answer = await self.ask(ApiKey.UPDATE_FEATURES, 2, fields)
            self.log_event(f"sets {TRANSACTION_VERSION} to {level}: {answer.error_code}")
            if not answer.error_code:
                return
