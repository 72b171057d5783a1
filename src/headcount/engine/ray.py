"""Shards on many machines: Ray's actors, each of which holds the model once. The only file that imports ray."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headcount.engine.transfer import Job, Shipment, checksum, pack, place, unpack
from headcount.engine.work import Arrays, Examples, Progress, Work, attempt, join, log, overheard, split
from headcount.errors import HeadcountError, first_line

TRIES = 2  # of a shard on workers that die, before it is taken to be too large for them


os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
try:
    import ray
    from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError
except ImportError:
    raise HeadcountError("many machines need Ray, which is not installed: pip install 'headcount[ray]'") from None

AHEAD = 2  # shards that each worker has been given: one to work on, one to go on with


class Ray:
    """An engine whose workers are actors of a Ray cluster.

    address: of a running cluster, `auto` for the one on this machine; None starts one here, for as long as the engine
        is open.
    workers: as many as the cluster has GPUs, or else cores for; threads: of each on a CPU.
    gpus: of each worker; by default one, where the cluster has any.
    share: move the weights of the models that are given into the object store, so that this process and all workers
        of a machine have them once in memory. They must not be written to afterwards.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        threads: int = 1,
        gpus: float | None = None,
        share: bool = False,
    ) -> None:
        self.own = not ray.is_initialized()
        if self.own:
            _connect(address)
        there = ray.cluster_resources()
        self.gpus = gpus if gpus is not None else float(there.get("GPU", 0) > 0)
        room = there.get("GPU", 0) / self.gpus if self.gpus else there.get("CPU", 0) / threads
        self.count = workers or max(1, int(room))
        if self.count > room:
            self.close()
            raise HeadcountError(
                f"{self.count} workers of {threads} thread(s) and {self.gpus:g} GPU(s) do not fit on this cluster, "
                f"which has {there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} GPUs; ask for fewer"
            )
        self.threads, self.share = threads, share
        self.device: str | None = "cuda" if self.gpus else "cpu"
        self.workers: list[Any] = []
        self.shipped: tuple[int, Shipment] | None = None  # the model that the workers have, and how it got there

    def __enter__(self) -> Ray:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Let the workers go, and the cluster with them if it was started here."""
        for worker in getattr(self, "workers", []):
            ray.kill(worker)
        self.workers, self.shipped = [], None
        if self.own:
            ray.shutdown()

    def run(
        self, work: Work, model: Any, data: Examples, shards: Sequence[Sequence[int]], progress: Progress | None = None
    ) -> Iterator[tuple[int, Arrays]]:
        """Hand out shards as workers are done with others; at most two to each, so that results do not pile up."""
        if not shards:
            return
        known = checksum(model)  # it may have been trained since the last time
        if self.shipped is None or self.shipped[0] != known:
            self.shipped = (known, pack(model, ray.put, ray.get if self.share else None))
        self.workers += [self._worker() for _ in range(min(self.count, len(shards)) - len(self.workers))]
        job = Job(self.shipped[1], ray.put(data), ray.put(work), self.gpus)
        yield from _Dispatch(self, Handout(work, data, shards), job).results(progress)

    def _worker(self) -> Any:
        environment = {"env_vars": {"OMP_NUM_THREADS": str(self.threads), "TOKENIZERS_PARALLELISM": "false"}}
        options = {"num_cpus": 0 if self.gpus else self.threads, "num_gpus": self.gpus, "runtime_env": environment}
        return ray.remote(Worker).options(**options).remote(self.threads)

    def replace(self, worker: Any) -> Any:
        """A new worker for one that has died."""
        fresh = self._worker()
        self.workers = [fresh if one is worker else one for one in self.workers]
        return fresh


class Worker:
    """An actor: loads the model once, and does shards."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.shipment: Shipment | None = None
        self.model: Any = None

    def prepare(self, job: Job) -> None:
        """Get what a job needs; a model that is here already is not fetched again."""
        if self.shipment is None or self.shipment.skeleton != job.model.skeleton:
            self.shipment, self.model = job.model, None  # the old model goes before the new one comes
            self.model = place(unpack(job.model, ray.get), job.gpus)
        self.data, self.work = ray.get([job.data, job.work])

    def do(self, indices: Sequence[int]) -> tuple[Arrays, list[str]]:
        """A shard's arrays, and what was said meanwhile."""
        with overheard() as said:
            return attempt(self.work, self.model, self.data, indices), said


class _Dispatch:
    """Workers and what they have promised."""

    def __init__(self, engine: Ray, handout: Handout, job: Job) -> None:
        self.engine, self.handout, self.job = engine, handout, job
        self.under_way: dict[Any, tuple[Part | None, Any]] = {}  # promises in their order: what, and which worker
        self.deaths = 0

    def results(self, progress: Progress | None) -> Iterator[tuple[int, Arrays]]:
        """Shards as they are finished."""
        for worker in self.engine.workers:
            self._start(worker)
        while self.under_way:
            ray.wait(list(self.under_way))
            kept, _ = ray.wait(list(self.under_way), num_returns=len(self.under_way), timeout=0)
            ready = next(promise for promise in self.under_way if promise in set(kept))  # the oldest of a worker first
            part, worker = self.under_way[ready]
            try:
                answer = ray.get(ready)
            except RayTaskError as error:  # what our own code says
                raise getattr(error, "cause", None) or error from None
            except (RayActorError, OutOfMemoryError) as error:
                self._bury(worker, first_line(error))
                continue
            except RayError as error:  # for instance, what was sent cannot be read there
                raise HeadcountError(f"a worker failed: {first_line(error)}") from error
            del self.under_way[ready]
            if part is None:
                continue
            self._give(worker)
            arrays, said = answer
            for message in said:
                log.warning(message)
            whole = self.handout.finished(part, arrays)
            if whole is not None:
                yield part.shard, whole
                if progress is not None:
                    progress(self.handout.share_done)

    def _start(self, worker: Any) -> None:
        self.under_way[worker.prepare.remote(self.job)] = (None, worker)
        for _ in range(AHEAD):
            self._give(worker)

    def _give(self, worker: Any) -> None:
        part = self.handout.take()
        if part is not None:
            self.under_way[worker.do.remote(part.indices)] = (part, worker)

    def _bury(self, worker: Any, reason: str) -> None:
        """All that a dead worker had goes back; a new one takes its place."""
        had = [part for part, owner in self.under_way.values() if owner is worker]
        self.under_way = {promise: pair for promise, pair in self.under_way.items() if pair[1] is not worker}
        begun = had[0] is not None  # else it died before it had the model
        self.deaths += not begun
        if self.deaths > self.engine.count:
            raise HeadcountError(f"workers die before they have loaded the model: {reason}")
        self.handout.lost([part for part in had if part is not None], reason, begun)
        self._start(self.engine.replace(worker))


def _connect(address: str | None) -> None:
    try:
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray fails with errors of many kinds, plain `Exception` among them
        where = "here" if address is None else f"at {address}"
        reason = first_line(error)
        todo = "try again when the machine is less busy" if address is None else "start one with: ray start --head"
        raise HeadcountError(f"there is no Ray cluster {where} ({reason}); {todo}") from error


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
