"""Which shards wait, which are finished, and what happens to those whose worker died."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headcount.engine.work import Arrays, Examples, Work, join, log, split

TRIES = 2  # of a shard on workers that die, before it is taken to be too large for them


@dataclass(eq=False)
class Part:
    """A shard, or a part of one that was too large: which examples, and how often a worker has died of it."""

    shard: int
    indices: Sequence[int]
    tries: int = 0


class Handout:
    """Shards to be handed out to workers, each as a whole if possible."""

    def __init__(self, work: Work, data: Examples, shards: Sequence[Sequence[int]]) -> None:
        self.work, self.data, self.count = work, data, len(shards)
        self.waiting = deque(Part(number, indices) for number, indices in enumerate(shards))
        self.parts: dict[int, list[Part]] = {part.shard: [part] for part in self.waiting}  # of unfinished shards
        self.done: dict[Part, Arrays] = {}

    @property
    def share_done(self) -> float:
        return 1 - len(self.parts) / self.count

    def take(self) -> Part | None:
        """What to do next."""
        return self.waiting.popleft() if self.waiting else None

    def finished(self, part: Part, arrays: Arrays) -> Arrays | None:
        """The arrays of the whole shard, if this was the last part of it."""
        self.done[part] = arrays
        if not all(one in self.done for one in self.parts[part.shard]):
            return None
        return join(self.work, [self.done.pop(one) for one in self.parts.pop(part.shard)])

    def lost(self, parts: Sequence[Part], reason: str, begun: bool = True) -> None:
        """A worker has died: what it had waits again, first of all; in halves what two have died of.

        parts: the first is what it was doing, unless it had not begun.
        """
        again = list(parts)
        if begun:
            victim = again[0]
            victim.tries += 1
            if victim.tries >= TRIES:
                again[:1] = self._halves(victim, reason)
                self.waiting.extendleft(reversed(again))
                return
        log.warning("a worker has died (%s): what it was doing is tried again on another", reason)
        self.waiting.extendleft(reversed(again))

    def _halves(self, part: Part, reason: str) -> list[Part]:
        halves = [Part(part.shard, half) for half in split(self.work, self.data, part.indices, reason)]
        mine = self.parts[part.shard]
        place = mine.index(part)
        mine[place : place + 1] = halves
        return halves
