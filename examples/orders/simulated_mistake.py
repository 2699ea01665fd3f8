"""The service that commits first, in the same story: some seed forgets an order."""

from __future__ import annotations

import service_commits_first
from shop import TOPICS, shop

from fenceline.testing.applications import StoryWorld, simulated


@simulated(topics=TOPICS, seconds=1.0)
async def orders_commits_first(world: StoryWorld) -> None:
    """No order is forgotten, they say."""
    await shop(world, service_commits_first.run)
