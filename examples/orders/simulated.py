"""The order service in the simulated world: python -m fenceline.testing.applications examples/orders/simulated.py"""

from __future__ import annotations

import service
from shop import TOPICS, shop

from fenceline.testing.applications import StoryWorld, simulated


@simulated(topics=TOPICS, seconds=1.0)
async def orders(world: StoryWorld) -> None:
    """No order is forgotten."""
    await shop(world, service.run)
