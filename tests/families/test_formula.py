"""Masked attention, written straight from M19's formula with plain loops, against the models' own.

MHAtt(x, q) = sum over heads h of xi_h * Att_h(x, q), where Att_h includes the head's slice of the output projection
(M19, section 2.3); the projection's bias stays. Values of xi other than 0 and 1 on purpose.
"""

from __future__ import annotations

import math

import pytest
import torch

import zoo
from headcount import anatomy, masked, remove
from oracle import off_by, places


def softmax(scores):
    """By definition, one row at a time."""
    exponentials = [math.exp(score - max(scores)) for score in scores]
    return [value / sum(exponentials) for value in exponentials]


def linear(vector, weight, bias):
    product = [sum(w * v for w, v in zip(row, vector, strict=True)) for row in weight]
    return product if bias is None else [one + other for one, other in zip(product, bias, strict=True)]


def rows_of(projection, first, last, transposed=False):
    """The rows of a projection that make one head's vectors, with their share of the bias."""
    weight = projection.weight.T if transposed else projection.weight
    bias = None if projection.bias is None else projection.bias[first:last].tolist()
    return weight[first:last].tolist(), bias


def rotated(vector, position, base=10000.0):
    """Rotary position: coordinates i and i + d/2 turn by position * base^(-2i/d)."""
    half = len(vector) // 2
    turned = list(vector)
    for i in range(half):
        angle = position * base ** (-2 * i / len(vector))
        one, two = vector[i], vector[i + half]
        turned[i] = one * math.cos(angle) - two * math.sin(angle)
        turned[i + half] = two * math.cos(angle) + one * math.sin(angle)
    return turned


def att(queries, keys, values, visible, scale):
    """One head, before its slice of the output projection."""
    contexts = []
    for t, query in enumerate(queries):
        seen = [s for s in range(len(keys)) if visible(t, s)]
        weights = softmax([scale * sum(q * k for q, k in zip(query, keys[s], strict=True)) for s in seen])
        contexts.append(
            [sum(w * values[s][i] for w, s in zip(weights, seen, strict=True)) for i in range(len(values[0]))]
        )
    return contexts


def mh_att(x, memory, xi, head, visible, output, size, hidden):
    """sum_h xi_h Att_h + bias, for one example. `head(h, x, memory)` gives the head's queries, keys and values."""
    bias = [0.0] * hidden if output.bias is None else output.bias.tolist()
    total = [list(bias) for _ in x]
    weight = output.weight.T if type(output).__name__ == "Conv1D" else output.weight  # (hidden, heads * size)
    for h, value in enumerate(xi):
        columns = weight[:, h * size : (h + 1) * size].tolist()
        for t, context in enumerate(att(*head(h, x, memory), visible, 1 / math.sqrt(size))):
            for i, part in enumerate(linear(context, columns, None)):
                total[t][i] += value * part
    return total


def observed(model, name, site, batch, xi):
    """What enters the site and what its output projection puts out, under the mask."""
    place = places(model, name)[site]
    inputs, outputs = [], []
    module = anatomy(model).site(site).module
    handles = [
        module.register_forward_pre_hook(lambda m, args, kwargs: inputs.append((args, kwargs)), with_kwargs=True),
        model.get_submodule(place.output).register_forward_hook(lambda m, args, output: outputs.append(output)),
    ]
    with torch.no_grad(), masked(model, xi=xi):
        model(**batch)
    for handle in handles:
        handle.remove()
    args, kwargs = inputs[0]
    return args[0] if args else kwargs["hidden_states"], args, kwargs, outputs[0]


def xi_for(model, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(len(anatomy(model).heads), generator=generator) * 3 - 1


def at(model, site, xi):
    return [xi[anatomy(model).index(head)].item() for head in anatomy(model).site(site).heads]


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_an_encoder(kernel):
    model = zoo.build("bert", attn=kernel)
    batch = zoo.inputs("bert", padding="right")
    xi = xi_for(model, 1)
    hidden, _, _, output = observed(model, "bert", "encoder.1", batch, xi)
    attention = model.encoder.layer[1].attention

    def head(h, x, memory):
        parts = [rows_of(getattr(attention.self, part), 6 * h, 6 * h + 6) for part in ("query", "key", "value")]
        return [[linear(vector, *part) for vector in x] for part in parts]

    for row in range(3):
        mask = batch["attention_mask"][row].tolist()
        x = hidden[row].tolist()
        found = mh_att(
            x, x, at(model, "encoder.1", xi), head, lambda t, s, mask=mask: mask[s], attention.output.dense, 6, 24
        )
        real = [t for t, is_real in enumerate(mask) if is_real]
        assert off_by(output[row][real], torch.tensor(found)[real]) <= 1e-5


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_a_decoder_with_grouped_keys_and_rotary_positions(kernel):
    model = zoo.build("llama", attn=kernel)
    batch = zoo.inputs("llama", padding=None, batch=2, length=7)
    xi = xi_for(model, 2)
    hidden, _, _, output = observed(model, "llama", "decoder.1", batch, xi)
    attention = model.layers[1].self_attn

    def head(h, x, memory):
        queries = [linear(vector, *rows_of(attention.q_proj, 4 * h, 4 * h + 4)) for vector in x]
        shared = h // 2  # two query heads share one key-value head
        keys = [linear(vector, *rows_of(attention.k_proj, 4 * shared, 4 * shared + 4)) for vector in x]
        values = [linear(vector, *rows_of(attention.v_proj, 4 * shared, 4 * shared + 4)) for vector in x]
        turn = [rotated(vector, t) for t, vector in enumerate(queries)]
        return turn, [rotated(vector, t) for t, vector in enumerate(keys)], values

    for row in range(2):
        x = hidden[row].tolist()
        found = mh_att(x, x, at(model, "decoder.1", xi), head, lambda t, s: s <= t, attention.o_proj, 4, 32)
        assert off_by(output[row], torch.tensor(found)) <= 1e-5


def test_a_decoder_with_a_fused_projection():
    model = zoo.build("gpt2")
    batch = zoo.inputs("gpt2", padding=None, batch=2, length=7)
    xi = xi_for(model, 3)
    hidden, _, _, output = observed(model, "gpt2", "decoder.2", batch, xi)
    attention = model.h[2].attn

    def head(h, x, memory):
        stretches = [rows_of(attention.c_attn, 24 * part + 6 * h, 24 * part + 6 * h + 6, True) for part in range(3)]
        return [[linear(vector, *stretch) for vector in x] for stretch in stretches]

    for row in range(2):
        x = hidden[row].tolist()
        found = mh_att(x, x, at(model, "decoder.2", xi), head, lambda t, s: s <= t, attention.c_proj, 6, 24)
        assert off_by(output[row], torch.tensor(found)) <= 1e-5


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_cross_attention(kernel):
    model = zoo.build("marian", attn=kernel)
    batch = zoo.inputs("marian", padding="right")
    xi = xi_for(model, 4)
    hidden, _, kwargs, output = observed(model, "marian", "cross.1", batch, xi)
    attention = model.decoder.layers[1].encoder_attn

    def head(h, x, memory):
        query, key, value = (rows_of(getattr(attention, f"{part}_proj"), 6 * h, 6 * h + 6) for part in "qkv")
        queries = [linear(vector, *query) for vector in x]
        return queries, [linear(vector, *key) for vector in memory], [linear(vector, *value) for vector in memory]

    for row in range(3):
        mask = batch["attention_mask"][row].tolist()
        x, memory = hidden[row].tolist(), kwargs["key_value_states"][row].tolist()
        found = mh_att(
            x, memory, at(model, "cross.1", xi), head, lambda t, s, mask=mask: mask[s], attention.out_proj, 6, 24
        )
        assert off_by(output[row], torch.tensor(found)) <= 1e-5


def test_a_removed_head_is_one_that_is_left_out_of_the_sum():
    """The formula with fewer heads, on the weights that are left, gives what the pruned model gives."""
    model = remove(zoo.build("llama"), ["decoder.0.0", "decoder.0.1", "decoder.0.2", "decoder.0.5"])
    batch = zoo.inputs("llama", padding=None, batch=1, length=6)
    attention = model.layers[0].self_attn
    seen = []
    handles = [
        attention.register_forward_pre_hook(lambda m, a, k: seen.append(k["hidden_states"]), with_kwargs=True),
        attention.o_proj.register_forward_hook(lambda m, a, output: seen.append(output)),
    ]
    with torch.no_grad():
        model(**batch)
    for handle in handles:
        handle.remove()
    keys_of = {0: 0, 1: 1, 2: 2, 3: 2}  # left: heads 3, 4, 6, 7 with the keys of 2-3, 4-5 and 6-7

    def head(h, x, memory):
        queries = [linear(vector, *rows_of(attention.q_proj, 4 * h, 4 * h + 4)) for vector in x]
        first = 4 * keys_of[h]
        keys = [linear(vector, *rows_of(attention.k_proj, first, first + 4)) for vector in x]
        values = [linear(vector, *rows_of(attention.v_proj, first, first + 4)) for vector in x]
        turn = [rotated(vector, t) for t, vector in enumerate(queries)]
        return turn, [rotated(vector, t) for t, vector in enumerate(keys)], values

    x = seen[0][0].tolist()
    found = mh_att(x, x, [1.0] * 4, head, lambda t, s: s <= t, attention.o_proj, 4, 32)
    assert off_by(seen[1][0], torch.tensor(found)) <= 1e-5
