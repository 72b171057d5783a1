"""Handing out shards: what a dead worker had is done again, in halves what two have died of."""

import numpy as np
import pytest
import torch

from headcount import HeadcountError
from headcount.engine.ray import Handout
from headcount.engine.transfer import checksum, pack, unpack
from headcount.engine.work import Local, attempt, overheard
from headcount.surgery.removal import remove
from zoo import FAMILIES, build


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
    with overheard() as said:
        arrays = attempt(Square(room=3), None, DATA, [3, 4, 5, 6, 7, 8])
    assert arrays["squares"].tolist() == [9, 16, 25, 36, 49, 64]
    assert arrays["total"] == 199
    assert "out of memory on 6 examples (DefaultCPUAllocator: can't allocate memory" in said[0]


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")])
def test_every_kind_of_running_out_of_memory(error):
    assert attempt(Square(1, error), None, DATA, [1, 2])["total"] == 5


def test_one_example_that_does_not_fit_is_refused_by_name():
    with pytest.raises(HeadcountError, match=r"one example of 4 tokens does not fit into memory .* --max-length"):
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
    handout = Handout(Square(), DATA, [[0, 1], [2, 3], [4, 5]])
    first, second = handout.take(), handout.take()
    with overheard() as said:
        handout.lost([first, second], "killed")
    assert "a worker has died (killed)" in said[0]
    assert [handout.take().shard for _ in range(3)] == [0, 1, 2]
    assert handout.take() is None
    assert (first.tries, second.tries) == (1, 0)


def test_what_two_workers_have_died_of_is_halved_and_joined_again():
    work = Square()
    handout = Handout(work, DATA, [[0, 1, 2, 3], [4, 5]])
    for _ in range(2):
        handout.lost([handout.take()], "killed")
    left, right, other = (handout.take() for _ in range(3))
    assert [list(part.indices) for part in (left, right, other)] == [[0, 1], [2, 3], [4, 5]]
    assert handout.finished(right, attempt(work, None, DATA, right.indices)) is None
    assert handout.share_done == 0
    whole = handout.finished(left, attempt(work, None, DATA, left.indices))
    assert whole["squares"].tolist() == [0, 1, 4, 9]
    assert handout.share_done == 0.5


def test_a_single_example_that_kills_workers_is_refused():
    handout = Handout(Square(), DATA, [[7]])
    handout.lost([handout.take()], "killed")
    with pytest.raises(HeadcountError, match="one example of 4 tokens"):
        handout.lost([handout.take()], "killed")


def test_a_worker_that_had_not_begun_is_no_reason_to_halve():
    handout = Handout(Square(), DATA, [[0, 1]])
    for _ in range(5):
        handout.lost([handout.take()], "never started", begun=False)
    assert list(handout.take().indices) == [0, 1]


class Store(list):
    """Keeps what it is given; a reference is a place in it."""

    def put(self, value):
        self.append(value)
        return len(self) - 1


@pytest.mark.parametrize("name", FAMILIES)
def test_a_shipped_model_is_the_same_bit_for_bit(name):
    model, store = build(name), Store()
    shipment = pack(model, store.put)
    assert all(tensor.is_meta for tensor in store[shipment.skeleton].state_dict().values())
    again = unpack(shipment, store.__getitem__)
    theirs = again.state_dict()
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in model.state_dict().items())
    assert [id(x) == id(y) for x in model.parameters() for y in model.parameters()] == [
        id(x) == id(y) for x in again.parameters() for y in again.parameters()
    ]
    for (key, buffer), (other, copied) in zip(model.named_buffers(), again.named_buffers(), strict=True):
        assert key == other
        assert torch.equal(buffer, copied)


def test_sharing_leaves_the_model_as_it_was():
    model, store = build("bert"), Store()
    before = checksum(model)
    pack(model, store.put, store.__getitem__)
    assert checksum(model) == before
    theirs = {array.ctypes.data for array in store if isinstance(array, np.ndarray)}
    assert any(weight.data_ptr() in theirs for weight in model.parameters())


def test_a_pruned_model_can_be_shipped():
    model = remove(build("llama"), ["decoder.0.0", "decoder.0.1"])
    store = Store()
    again = unpack(pack(model, store.put), store.__getitem__)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(model(ids).last_hidden_state, again(ids).last_hidden_state)
