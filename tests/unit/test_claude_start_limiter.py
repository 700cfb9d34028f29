"""How many sessions start at one time: who is too many waits, says so once, and is let in; a stop ends the waiting."""

from __future__ import annotations

import asyncio
from pathlib import Path

from garrison.agents.conversation.start_watch import start_slot
from support import DEADLINE


def test_the_third_start_waits_for_a_slot(tmp_path: Path) -> None:
    told: list[str] = []
    order: list[str] = []

    async def begin(name: str, over: asyncio.Event) -> None:
        async with start_slot(tmp_path, 2, told.append, asyncio.Event()) as started:
            order.append(name)
            await over.wait()
            started.set()

    async def scene() -> None:
        overs = [asyncio.Event() for _ in range(3)]
        tasks = []
        for number, over in enumerate(overs):
            tasks.append(asyncio.ensure_future(begin(str(number), over)))
            await asyncio.sleep(0)
        while not told:
            await asyncio.sleep(0.01)
        assert order == ["0", "1"]
        overs[0].set()
        while len(order) < 3:
            await asyncio.sleep(0.01)
        for over in overs:
            over.set()
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(scene(), DEADLINE))
    assert told == ["for a start slot: at most 2 sessions start at a time"]
    assert order == ["0", "1", "2"]


def test_a_stop_ends_the_waiting(tmp_path: Path) -> None:
    async def scene() -> None:
        stop = asyncio.Event()
        async with start_slot(tmp_path, 1, lambda text: None, asyncio.Event()):
            asyncio.get_running_loop().call_later(0.05, stop.set)
            async with start_slot(tmp_path, 1, lambda text: None, stop):
                assert stop.is_set()

    asyncio.run(asyncio.wait_for(scene(), DEADLINE))
