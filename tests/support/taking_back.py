"""A store in which a cancelled request takes its question back while the next one is being stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from ctxfold import MemoryStore
from ctxfold.history.records import Draft, Record, SessionKey, TurnClosed

Moment = Literal["looked for", "written"]


class TakingBack(MemoryStore):
    """Writes that a turn was discarded at one moment of storing the message "next": before it is looked for, or written."""

    def __init__(self, moment: Moment) -> None:
        super().__init__()
        self.moment = moment
        self.due, self.done = asyncio.Event(), asyncio.Event()

    async def aappend(self, key: SessionKey, drafts: Sequence[Draft], **settings: Any) -> Any:
        discards = any(d.body == TurnClosed("discarded") for d in drafts)
        if discards:
            await self.due.wait()
        await self._take_back([d.id for d in drafts], "written")
        records = await super().aappend(key, drafts, **settings)
        if discards:
            self.done.set()
        return records

    async def afind(self, key: SessionKey, ids: Sequence[str]) -> tuple[Record, ...]:
        await self._take_back(ids, "looked for")
        return await super().afind(key, ids)

    async def _take_back(self, ids: Sequence[str], moment: Moment) -> None:
        if "m:next" in ids and moment == self.moment:
            self.due.set()
            await self.done.wait()
