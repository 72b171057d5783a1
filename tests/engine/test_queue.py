"""Work that does not fit is halved; what a dead worker had is done again, in halves if two have died of it."""

import numpy as np
import pytest
import torch

from headcount import HeadcountError
from headcount.engine import Local
from headcount.engine.shards import ShardQueue
from headcount.engine.work import attempt, collected_warnings


class Numbers:
    """Examples that are numbers; all of the same length."""

    def __init__(self, values):
        self.values = list(values)
        self.lengths = [4] * len(self.values)

    def __len__(self):
        return len(self.values)

    def subset(self, indices):
        return Numbers(self.values[index] for index in indices)


class Square:
    """Squares each number; runs out of memory on more than `room` of them."""

    tokens = 8  # two examples in a batch

    def __init__(self, room=100, error=None):
        self.room, self.error = room, error or RuntimeError("DefaultCPUAllocator: can't allocate memory: 7 bytes")

    def summed(self, name):
        return name == "total"

    def __call__(self, model, examples, progress=None):
        if len(examples) > self.room:
            raise self.error
        values = np.array(examples.values) ** 2
        return {"squares": values, "total": values.sum()}


DATA = Numbers(range(10))


def test_a_shard_that_does_not_fit_is_split_between_batches_and_said():
    with collected_warnings() as said:
        arrays = attempt(Square(room=3), None, DATA, [3, 4, 5, 6, 7, 8])
    assert arrays["squares"].tolist() == [9, 16, 25, 36, 49, 64]
    assert arrays["total"] == 199
    assert "6 examples (DefaultCPUAllocator: can't allocate memory" in said[0]


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")])
def test_every_kind_of_running_out_of_memory(error):
    assert attempt(Square(1, error), None, DATA, [1, 2])["total"] == 5


def test_one_example_that_does_not_fit_is_refused_by_name():
    with pytest.raises(HeadcountError, match=r"one example of 4 tokens.*max_length"):
        attempt(Square(room=0), None, DATA, [1, 2])


def test_another_error_is_not_taken_for_a_lack_of_memory():
    with pytest.raises(RuntimeError, match="shapes"):
        attempt(Square(0, RuntimeError("shapes do not match")), None, DATA, [1, 2])


def test_local_gives_shards_in_order_and_progress():
    seen = []
    given = list(Local().run(Square(), None, DATA, [[0, 1], [2]], seen.append))
    assert [(number, arrays["total"]) for number, arrays in given] == [(0, 1), (1, 4)]
    assert seen[-1] == 1.0


def test_what_a_dead_worker_had_comes_first_and_whole():
    queue = ShardQueue(Square(), DATA, [[0, 1], [2, 3], [4, 5]])
    first, second = queue.take(), queue.take()
    with collected_warnings() as said:
        queue.give_back([first, second], "killed")
    assert "(killed)" in said[0]
    assert [queue.take().shard for _ in range(3)] == [0, 1, 2]
    assert queue.take() is None
    assert (first.deaths, second.deaths) == (1, 0)


def test_what_two_workers_have_died_of_is_halved_and_joined_again():
    work = Square()
    queue = ShardQueue(work, DATA, [[0, 1, 2, 3], [4, 5]])
    for _ in range(2):
        queue.give_back([queue.take()], "killed")
    left, right, other = (queue.take() for _ in range(3))
    assert [list(part.indices) for part in (left, right, other)] == [[0, 1], [2, 3], [4, 5]]
    assert queue.finish(right, attempt(work, None, DATA, right.indices)) is None
    assert queue.share_done == 0
    whole = queue.finish(left, attempt(work, None, DATA, left.indices))
    assert whole["squares"].tolist() == [0, 1, 4, 9]
    assert queue.share_done == 0.5


def test_a_single_example_that_kills_workers_is_refused():
    queue = ShardQueue(Square(), DATA, [[7]])
    queue.give_back([queue.take()], "killed")
    with pytest.raises(HeadcountError, match="one example of 4 tokens"):
        queue.give_back([queue.take()], "killed")


def test_a_worker_that_had_not_begun_is_no_reason_to_halve():
    queue = ShardQueue(Square(), DATA, [[0, 1]])
    for _ in range(5):
        queue.give_back([queue.take()], "never started", begun=False)
    assert list(queue.take().indices) == [0, 1]
