"""What operators' tools ask is answered alike from a loop and from a thread."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.contract.places import Place


def test_the_event_stream_is_read_alike_from_a_loop(place: Place) -> None:
    """The same events, the same identity; what is trimmed is at least not what follows."""
    engine = place.engine
    with place.lock("order:1"):
        pass
    engine.ping()

    async def ask() -> tuple[Any, Any]:
        try:
            await engine.aping()
            events, identity = await engine.aread_events(), await engine.astream_identity()
            assert (events, identity) == (engine.read_events(), engine.stream_identity())
            assert await engine.aread_events(0, events[0].id, 1) == events[1:2]
            await engine.atrim_events(0, events[0].id)
            return events, identity
        finally:
            await engine.aclose()

    events, identity = asyncio.run(ask())
    assert [event.kind for event in events] == ["acquired", "released"]
    assert engine.read_events()[-1] == events[-1]
    assert engine.stream_identity() == identity
