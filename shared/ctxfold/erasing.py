"""What a handle on a session can erase: text leaves everything that is stored. Each method has an async form."""

from __future__ import annotations

from ctxfold import erase
from ctxfold.erase import Age, Erasure
from ctxfold.handle import SessionHandle

__all__ = ["SessionErasing"]


class SessionErasing(SessionHandle):
    """What a session's handle can erase."""

    def erase(self, *references: str) -> Erasure:
        """Take messages, by id or `#17`, out of everything that is stored, with their tool rounds: the log, the index,
        summaries, forks. There is no undo. MessageNotFoundError, and nothing is done, for one that never was."""
        return self._run(self._edit(lambda e, j: erase.erase(e, j, references)))

    async def aerase(self, *references: str) -> Erasure:
        return await self._arun(self._edit(lambda e, j: erase.erase(e, j, references)))

    def erase_older_than(self, age: Age) -> Erasure:
        """Erase what was said longer ago than a timedelta, or before a datetime; system prompts stay."""
        return self._run(self._edit(lambda e, j: erase.erase_older_than(e, j, age)))

    async def aerase_older_than(self, age: Age) -> Erasure:
        return await self._arun(self._edit(lambda e, j: erase.erase_older_than(e, j, age)))

    def erase_session(self) -> Erasure:
        """Remove the session, and from its forks what they took over; used again, it begins empty."""
        self._turn = None
        return self._run(erase.erase_session(self._engine, self._key))

    async def aerase_session(self) -> Erasure:
        self._turn = None
        return await self._arun(erase.erase_session(self._engine, self._key))

    def erase_owner(self) -> bool:
        """Remove every session of this context's owner, and all else that is theirs. False as `Erasure.settled` says."""
        self._turn = None
        return self._run(erase.erase_owner(self._engine, self._key.owner))

    async def aerase_owner(self) -> bool:
        self._turn = None
        return await self._arun(erase.erase_owner(self._engine, self._key.owner))

    def forks(self) -> tuple[str, ...]:
        """The names of the sessions that were forked from this one, directly or not."""
        return self._run(erase.forks(self._key))

    async def aforks(self) -> tuple[str, ...]:
        return await self._arun(erase.forks(self._key))
