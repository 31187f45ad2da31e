"""What operators' tools ask is answered alike from a loop and from a thread."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.contract.places import Place


def test_the_event_stream_is_read_alike_from_a_loop(place: Place) -> None:
    """The same events, the same identity; what is trimmed is at least not what follows."""
    engine, shard = place.engine, place.shard("order:1")
    with place.lock("order:1"):
        pass
    engine.ping()

    async def ask() -> tuple[Any, Any]:
        try:
            await engine.aping()
            events = await engine.aread_events(shard)
            identity = await engine.astream_identity(shard)
            assert (events, identity) == (engine.read_events(shard), engine.stream_identity(shard))
            assert await engine.aread_events(shard, events[0].id, 1) == events[1:2]
            await engine.atrim_events(shard, events[0].id)
            return events, identity
        finally:
            await engine.aclose()

    events, identity = asyncio.run(ask())
    assert [event.kind for event in events] == ["acquired", "released"]
    assert engine.read_events(shard)[-1] == events[-1]
    assert engine.stream_identity(shard) == identity
