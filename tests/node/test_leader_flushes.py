"""`flush.messages` of a leader: an acknowledgement waits for the flush, also for a batch that was appended before."""

from __future__ import annotations

from fenceline.node.net.connection import PendingAnswer
from fenceline.records.build import build_batch
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import write_request
from tests.node.desk import TOPIC, Desk, run_story, turns


def _sent(desk: Desk) -> object:
    """The same batch of an idempotent producer each time, with acks=1."""
    batch = bytes(build_batch([(0, b"k", b"v", ())], producer_id=7, producer_epoch=0, base_sequence=0))
    data = [{"name": TOPIC, "topic_id": desk.topic_id, "partition_data": [{"index": 0, "records": batch}]}]
    fields = {"transactional_id": None, "acks": 1, "timeout": 1_000, "topic_data": data}
    return desk.producing.handle(desk.context(12), memoryview(write_request(ApiKey.PRODUCE, 12, fields)))


def test_retried_batch_waits_for_the_flush_of_the_first_attempt() -> None:
    """It was acknowledged at once, before the flush that the first attempt waits for had ended."""

    async def story(desk: Desk) -> None:
        desk.topic_settings["flush.messages"] = "1"
        desk.lead(1)
        assert isinstance(_sent(desk), PendingAnswer)
        assert isinstance(_sent(desk), PendingAnswer)
        assert desk.replica().log.log_end_offset == 1
        while desk.replica().log.recovery_point < 1:
            await turns(1)
        assert isinstance(_sent(desk), list), "it is durable"

    run_story(story)
