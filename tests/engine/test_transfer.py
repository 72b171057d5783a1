"""A model comes out of a store as it went in."""

import numpy as np
import pytest
import torch

from headcount import anatomy, remove
from headcount.engine.ray import checksum, fetch_model, store_model
from zoo import FAMILIES, build


class Store(list):
    """Keeps what it is given; a reference is a place in it."""

    def put(self, value):
        self.append(value)
        return len(self) - 1


@pytest.mark.parametrize("name", FAMILIES)
def test_a_stored_model_is_the_same_bit_for_bit(name):
    model, store = build(name), Store()
    stored = store_model(model, store.put)
    assert all(tensor.is_meta for tensor in store[stored.structure].state_dict().values())
    again = fetch_model(stored, store.__getitem__)
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
    store_model(model, store.put, store.__getitem__)
    assert checksum(model) == before
    theirs = {array.ctypes.data for array in store if isinstance(array, np.ndarray)}
    assert any(weight.data_ptr() in theirs for weight in model.parameters())


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_pruned_model_can_be_stored(name):
    model = remove(build(name), ["decoder.0.0", "decoder.0.1", "decoder_ffn.0", "decoder_ffn.1.3-20"])
    store = Store()
    again = fetch_model(store_model(model, store.put), store.__getitem__)
    assert anatomy(again, "neurons").heads == anatomy(model, "neurons").heads
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(model(ids).last_hidden_state, again(ids).last_hidden_state)
