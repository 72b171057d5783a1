"""Shards on many machines: Ray's actors, each of which holds the model once. The only file that imports ray.

A model travels as its structure without weights, and each tensor on its own, in Ray's object store: it gives arrays
back without copying them, so that all workers of a machine read the same weights.
"""

from __future__ import annotations

import copy
import logging
import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headcount.engine.shards import Assignment, ShardQueue
from headcount.engine.work import Arrays, Examples, Progress, Work, attempt, collected_warnings, log
from headcount.errors import HeadcountError, counted, first_line
from headcount.structure import ALIGNMENT, put_tensor, unsplittable

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
try:
    import ray
    from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError
except ImportError:
    raise HeadcountError("Ray is not installed", advice="install it with pip install 'headcount[ray]'") from None

AHEAD = 2  # shards that each worker has been given: the one that it works on, and the next


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
                f"{counted(self.count, 'worker')} of {counted(threads, 'thread')} and {counted(self.gpus, 'GPU')} "
                "do not fit on this cluster, "
                f"which has {there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} GPUs",
                advice="pass fewer {workers}",
            )
        self.threads, self.share = threads, share
        self.device: str | None = "cuda" if self.gpus else "cpu"
        self.workers: list[Any] = []
        self.stored: tuple[int, StoredModel] | None = None  # the model that the workers have, and its checksum

    def __enter__(self) -> Ray:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Stop the workers, and the cluster if it was started here."""
        for worker in getattr(self, "workers", []):
            ray.kill(worker)
        self.workers, self.stored = [], None
        if self.own:
            ray.shutdown()

    def run(
        self, work: Work, model: Any, data: Examples, shards: Sequence[Sequence[int]], progress: Progress | None = None
    ) -> Iterator[tuple[int, Arrays]]:
        """Hand out shards as workers are done with others; at most two to each, so that results do not pile up."""
        if not shards:
            return
        known = checksum(model)  # it may have been trained since the last time
        if self.stored is None or self.stored[0] != known:
            self.stored = (known, store_model(model, ray.put, ray.get if self.share else None))
        self.workers += [self._worker() for _ in range(min(self.count, len(shards)) - len(self.workers))]
        inputs = Inputs(self.stored[1], ray.put(data), ray.put(work), self.gpus)
        yield from _Dispatch(self, ShardQueue(work, data, shards), inputs).results(progress)

    def _worker(self) -> Any:
        environment = {"env_vars": {"OMP_NUM_THREADS": str(self.threads), "TOKENIZERS_PARALLELISM": "false"}}
        options = {"num_cpus": 0 if self.gpus else self.threads, "num_gpus": self.gpus, "runtime_env": environment}
        return ray.remote(Worker).options(**options).remote(self.threads)

    def replace(self, worker: Any) -> Any:
        """A new worker for one that has died, or that Ray cannot reach: it must not keep the cores that it had."""
        ray.kill(worker)
        fresh = self._worker()
        self.workers = [fresh if one is worker else one for one in self.workers]
        return fresh


@dataclass(frozen=True)
class Inputs:
    """The model, the data and the work, by reference: each worker fetches them once, not with every shard."""

    model: StoredModel
    data: Any
    work: Any
    gpus: float


class Worker:
    """An actor: loads the model once, and does shards."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.stored: StoredModel | None = None
        self.model: Any = None

    def prepare(self, inputs: Inputs) -> None:
        """Fetch what the work needs; a model that is here already is not fetched again."""
        if self.stored is None or self.stored.structure != inputs.model.structure:
            self.stored, self.model = inputs.model, None  # the old model goes before the new one comes
            self.model = move_to_gpus(fetch_model(inputs.model, ray.get), inputs.gpus)
        self.data, self.work = ray.get([inputs.data, inputs.work])

    def do(self, indices: Sequence[int]) -> tuple[Arrays, list[str]]:
        """A shard's arrays, and the warnings that were logged meanwhile."""
        with collected_warnings() as messages:
            return attempt(self.work, self.model, self.data, indices), messages


def move_to_gpus(model: Any, gpus: float) -> Any:
    """Put a model where a worker computes: on its GPU, spread over its GPUs, or, without any, where it is."""
    if gpus <= 1:
        return model.to("cuda") if gpus else model
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    whole = unsplittable(model)
    room = get_balanced_memory(model, no_split_module_classes=whole)
    return dispatch_model(model, infer_auto_device_map(model, room, no_split_module_classes=whole))


class _Dispatch:
    """Gives the shards of a queue to workers and collects what they return."""

    def __init__(self, engine: Ray, queue: ShardQueue, inputs: Inputs) -> None:
        self.engine, self.queue, self.inputs = engine, queue, inputs
        # What each pending result is of (None: of loading the model), and which worker it comes from; oldest first.
        self.pending: dict[Any, tuple[Assignment | None, Any]] = {}
        self.deaths = 0  # of workers before they had loaded the model

    def results(self, progress: Progress | None) -> Iterator[tuple[int, Arrays]]:
        """Shards as they are finished."""
        for worker in self.engine.workers:
            self._start(worker)
        while self.pending:
            ray.wait(list(self.pending))
            finished, _ = ray.wait(list(self.pending), num_returns=len(self.pending), timeout=0)
            ready = next(result for result in self.pending if result in set(finished))  # the oldest of a worker first
            assignment, worker = self.pending[ready]
            try:
                answer = ray.get(ready)
            except RayTaskError as error:  # raised by our own code
                raise getattr(error, "cause", None) or error from None
            except (RayActorError, OutOfMemoryError) as error:
                self._replace(worker, first_line(error))
                continue
            except RayError as error:  # for instance, what was sent cannot be read there
                raise HeadcountError(f"a worker failed: {first_line(error)}") from error
            del self.pending[ready]
            self._give(worker)
            if assignment is None:
                continue
            arrays, messages = answer
            for message in messages:
                log.warning(message)
            whole = self.queue.finish(assignment, arrays)
            if whole is not None:
                yield assignment.shard, whole
                if progress is not None:
                    progress(self.queue.share_done)

    def _start(self, worker: Any) -> None:
        """Let a worker load the model; shards come after that, or one that kills it could look like a failed load."""
        self.pending[worker.prepare.remote(self.inputs)] = (None, worker)

    def _give(self, worker: Any) -> None:
        """Keep a worker busy; a shard that a worker has died of is done alone, so that no other is blamed for it."""
        has = [one for one, owner in self.pending.values() if owner is worker and one is not None]
        while len(has) < AHEAD:
            suspect = any(one.deaths for one in [*has, *self.queue.waiting][: len(has) + 1])
            assignment = None if suspect and has else self.queue.take()
            if assignment is None:
                return
            self.pending[worker.do.remote(assignment.indices)] = (assignment, worker)
            has.append(assignment)

    def _replace(self, worker: Any, reason: str) -> None:
        """Give back all that a dead worker had, and start a new one."""
        had = [assignment for assignment, owner in self.pending.values() if owner is worker]
        self.pending = {result: pair for result, pair in self.pending.items() if pair[1] is not worker}
        begun = had[0] is not None  # else it died before it had the model
        self.deaths += not begun
        if self.deaths > self.engine.count:
            raise HeadcountError(f"workers die before they have loaded the model: {reason}")
        self.queue.give_back([one for one in had if one is not None], reason, begun)
        self._start(self.engine.replace(worker))


def _connect(address: str | None) -> None:
    try:
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray fails with errors of many kinds, plain `Exception` among them
        if address is None:
            message, advice = "cannot start Ray here", "try again when the machine is less busy"
        else:
            message, advice = f"no Ray cluster at {address}", "start one with: ray start --head"
        raise HeadcountError(f"{message} ({first_line(error)})", advice=advice) from error


@dataclass(frozen=True)
class StoredModel:
    """References to a model's structure and to its tensors, by name."""

    structure: Any
    tensors: dict[str, tuple[Any, torch.dtype]]


@torch.no_grad()
def store_model(model: nn.Module, put: Callable[[Any], Any], get: Callable[[Any], Any] | None = None) -> StoredModel:
    """Put a model into a store, tensor by tensor; with `get`, its own tensors become those of the store.

    put: takes an object, gives a reference to it. get: takes a reference, gives the object.
    """
    tensors: dict[str, tuple[Any, torch.dtype]] = {}
    memo: dict[int, Any] = {}
    for name, tensor in _tensors(model):
        if id(tensor) in memo:
            continue
        reference = put(_bytes(tensor))
        if get is not None and tensor.device.type == "cpu":
            tensor.data = _tensor(get(reference), tensor.dtype).view(tensor.shape)
        tensors[name] = (reference, tensor.dtype)
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return StoredModel(put(copy.deepcopy(model, memo)), tensors)


def fetch_model(stored: StoredModel, get: Callable[[Any], Any]) -> Any:
    """The model, with its weights as the store gives them."""
    model = get(stored.structure)
    fetched: dict[int, Tensor] = {}  # tied weights stay tied
    for name, tensor in list(_tensors(model)):
        if id(tensor) not in fetched:
            reference, dtype = stored.tensors[name]
            data = _tensor(get(reference), dtype).view(tensor.shape)
            is_parameter = isinstance(tensor, nn.Parameter)
            fetched[id(tensor)] = nn.Parameter(data, tensor.requires_grad) if is_parameter else data
            fetched[-id(tensor)] = tensor  # kept alive, so that no other gets its id
        put_tensor(model, name, fetched[id(tensor)])
    return model


def checksum(model: nn.Module) -> int:
    """A hash of a model and every bit of its weights.

    >>> model = nn.Linear(2, 2)
    >>> before = checksum(model)
    >>> model.bias.data[0] += 1
    >>> checksum(model) == before
    False
    """
    total = id(model)
    for name, tensor in _tensors(model):
        total = hash((total, name, zlib.crc32(_bytes(tensor))))
    return total


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()


def _tensor(array: Any, dtype: torch.dtype) -> Tensor:
    """Without a copy, if it is aligned as torch needs it."""
    if not array.size:
        return torch.empty(0, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it must not be written to: nobody does
        tensor = torch.frombuffer(array, dtype=dtype)
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
