"""The description of a simulated test: what it runs in, which faults it meets, and its coroutine.

Owns `simulated`, the decorator that makes a `Story` of a coroutine function. Runs nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from fenceline.errors import OperatorError
from fenceline.testing.applications.cluster import UNCLEAN, ClusterSetup, Topic
from fenceline.testing.applications.fault_plan import EVERY_FAULT, FaultKind
from fenceline.testing.applications.story_world import StoryWorld

TellStory = Callable[[StoryWorld], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Story:
    """A test of a simulated application. Created with `simulated`; `run_seeds` runs it."""

    name: str
    tell: TellStory
    setup: ClusterSetup
    faults: tuple[FaultKind, ...]
    seconds: float
    limit_s: float
    file: str = ""


def simulated(
    *,
    topics: Collection[Topic | str] = (),
    faults: Collection[FaultKind] = EVERY_FAULT,
    seconds: float = 2.0,
    transactions: bool = False,
    unclean_elections: bool = False,
    lost_commits: bool = False,
    recreated_topics: bool = False,
    properties: Mapping[str, str] = MappingProxyType({}),
    limit_s: float = 300.0,
) -> Callable[[TellStory], Story]:
    """Make a story of `async def name(world: StoryWorld)`.

    `topics` exist when it begins. Faults occur in its first `seconds`, of virtual time; it must end within `limit_s`.
    `transactions`: the transaction coordinator exists from the start, and faults aim at its requests too.
    `unclean_elections` and `recreated_topics` add the faults that lose acknowledged records, `lost_commits` one after
    which groups continue from older offsets. With the first, the topics have min.insync.replicas=1 and
    unclean.leader.election.enable=true. `properties`: of the brokers.
    """
    wanted = [Topic(each) if isinstance(each, str) else each for each in topics]
    kinds = [kind for kind in FaultKind if kind in faults]
    if unclean_elections:
        wanted = [replace(each, configs={**UNCLEAN, **each.configs}) for each in wanted]
        kinds.append(FaultKind.UNCLEAN_ELECTION)
    if lost_commits:
        kinds.append(FaultKind.COMMITS_LOST)
    if recreated_topics:
        kinds.append(FaultKind.TOPIC_RECREATED)
    setup = ClusterSetup(tuple(wanted), transactions, lost_commits, properties)

    def describe(tell: TellStory) -> Story:
        if not inspect.iscoroutinefunction(tell):
            raise OperatorError(
                f"{tell!r} cannot be simulated", "Decorate a coroutine function: async def story(world): ..."
            )
        return Story(
            tell.__name__,
            tell,
            setup,
            tuple(dict.fromkeys(kinds)),
            seconds,
            limit_s,
            inspect.getsourcefile(tell) or "",
        )

    return describe
