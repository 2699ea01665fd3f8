"""A crash between any two disk operations of a compaction: the log is unchanged, or completely compacted."""

from __future__ import annotations

from random import Random

import pytest

from fenceline.log.compaction import swap as compaction_swap
from fenceline.log.compaction.plan import Due
from fenceline.log.compaction.swap import Replacement
from fenceline.log.core.index import encode_aborted
from fenceline.log.directories.duplicate_logs import LogInspection, inspect_log
from fenceline.log.directories.log_dir_offsets import UNKNOWN
from fenceline.testing.sim_disk import Call, SimDisk
from tests.log.compaction_story import OURS, Story
from tests.log.helpers import DIRECTORY, open_log


class PowerLost(Exception):
    """Raised instead of executing a disk call."""


class CrashingDisk(SimDisk):
    """Loses power at its n-th call from now on; 0: never."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.calls_left = 0

    def _check_faults(self, call: Call, path: str) -> None:
        if self.calls_left:
            self.calls_left -= 1
            if not self.calls_left:
                raise PowerLost
        super()._check_faults(call, path)

    def link(self, source: str, target: str) -> None:
        self._check_faults("rename", source)
        super().link(source, target)


def grown(seed: int) -> tuple[Story, CrashingDisk]:
    """A log that needs compaction; the same seed gives the same log."""
    rng = Random(seed)
    disk = CrashingDisk(seed)
    story = Story(rng, disk)
    kinds = [story.append] * 12 + [story.append_in_transaction] * 3 + [story.decide] * 3
    kinds += [story.lead_again, story.roll, story.roll, story.wait, story.compact]
    for _ in range(rng.choice([30, 60])):
        rng.choice(kinds)()
    while story.open:
        story.decide()
    story.roll()
    story.append()
    story.flush()
    return story, disk


def compact_until_power_loss(story: Story) -> None:
    """Work that the node does in other threads runs synchronously."""
    due = story.due()
    assert due is not None
    work = story.begin(due)
    steps = work.steps()
    for step in steps:
        if isinstance(step, Replacement):
            assert compaction_swap.commit(story.log, step)
            compaction_swap.delete_old(story.disk, step)
    story.compacted(work.end)


def calls_of(seed: int) -> int:
    """How many disk calls a compaction makes; 0 if there is nothing to compact."""
    story, disk = grown(seed)
    if story.due() is None:
        return 0
    story, disk = grown(seed)
    disk.calls_left = 1 << 30
    compact_until_power_loss(story)
    return (1 << 30) - disk.calls_left


def inspected(disk: SimDisk, recovery_point: int) -> LogInspection:
    """Inspect the log as a comparison of two directories does; no file changes."""
    before = {name: disk.peek(f"{DIRECTORY}/{name}") for name in disk.listdir(DIRECTORY)}
    found = inspect_log(disk, DIRECTORY, UNKNOWN._replace(recovery_point=recovery_point), clean=False)
    assert {name: disk.peek(f"{DIRECTORY}/{name}") for name in disk.listdir(DIRECTORY)} == before
    return found


def check_power_loss(seed: int, call: int) -> None:
    story, disk = grown(seed)
    before = (story.log.log_start_offset, story.log.log_end_offset, story.log.epochs.entries)
    disk.calls_left = call
    with pytest.raises(PowerLost):
        compact_until_power_loss(story)
    disk.calls_left = 0
    disk.crash()
    found = inspected(disk, story.recovery_point)
    story.log = open_log(disk, config=story.config, recovery_point=story.recovery_point, incarnation=OURS)
    assert (found.log_start_offset, found.log_end_offset) == (story.log.log_start_offset, story.log.log_end_offset)
    assert story.log.recovery is not None
    assert story.log.recovery.cut_bytes == 0
    story.log.advance_high_watermark(story.log.log_end_offset)
    assert before == (story.log.log_start_offset, story.log.log_end_offset, story.log.epochs.entries)
    story.same()
    assert not [name for name in disk.listdir(DIRECTORY) if name.endswith((".swap", ".cleaned", ".deleted", ".tmp"))]
    story.compact()


@pytest.mark.parametrize("seed", range(12))
def test_power_loss_between_two_steps(seed: int) -> None:
    """Crashes at the last steps of each segment, and at a sample of the others."""
    count = calls_of(seed)
    for call in Random(seed).sample(range(1, count + 1), min(count, 25)):
        check_power_loss(seed, call)


@pytest.mark.parametrize("seed", range(8))
def test_compaction_stopped_between_two_pieces_leaves_the_log_unchanged(seed: int) -> None:
    for pieces in [*range(1, 8), *range(8, 80, 9)]:
        story, disk = grown(seed)
        due = story.due()
        if due is None:
            return
        steps = story.begin(due).steps()
        is_over = False
        for _ in range(pieces):
            step = next(steps, None)
            if step is None:
                is_over = True
                break
            if isinstance(step, Replacement) and story.rng.random() < 0.5:
                assert compaction_swap.commit(story.log, step)
        steps.close()
        descriptors = disk.open_descriptors
        assert descriptors <= len(story.log.segments) + 1
        assert not [name for name in disk.listdir(DIRECTORY) if name.endswith((".swap", ".cleaned"))]
        story.same()
        story.reopen()
        if is_over:
            return


def test_segment_removed_during_compaction_is_not_replaced() -> None:
    story, _ = grown(3)
    due = story.due()
    assert due is not None
    steps = story.begin(due).steps()
    step = next(each for each in steps if isinstance(each, Replacement))
    before = list(story.log.segments)
    story.log.truncate_to(story.log.segments[-1].base_offset)
    assert not compaction_swap.commit(story.log, step)
    steps.close()
    assert len(story.log.segments) <= len(before)


def test_segment_with_unsaved_indexes_is_not_replaced() -> None:
    story, disk = grown(3)
    story.roll()
    story.append()
    log = story.log
    active = log.segments[-1].base_offset
    assert log.segments[0].indexes_saved
    assert not log.segments[-2].indexes_saved
    refused = []
    steps = story.begin(Due(0, active, 1, 1.0)).steps()
    for step in steps:
        if isinstance(step, Replacement) and not compaction_swap.commit(log, step):
            refused.append(step)
            break
    steps.close()
    assert [log.segments[-2]] == [each for step in refused for each in step.old if not each.indexes_saved]
    story.flush()
    for segment in log.segments[:-1]:
        assert disk.peek(segment.stem + ".index") == segment.indexes()[0].encode()
        entries = disk.peek(segment.stem + ".txnindex") or b""
        assert entries == encode_aborted(segment.aborted_transactions())
    story.reopen()


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "open", "read"])
def test_disk_error_leaves_the_log_unchanged(call: Call) -> None:
    story, disk = grown(5)
    due = story.due()
    assert due is not None
    work = story.begin(due)
    disk.fail(call)
    steps = work.steps()
    with pytest.raises(OSError, match="rror"):
        for _ in steps:
            pass
    disk.heal()
    story.same()
    story.reopen()
    story.compact()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 400))
def test_power_loss_between_any_two_steps(seed: int) -> None:
    for call in range(1, calls_of(seed) + 1):
        check_power_loss(seed, call)
