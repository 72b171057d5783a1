"""Counted FLOPs: under every attention kernel what eager attention costs, and what the formula says."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

import zoo
from headcount import anatomy, remove
from headcount.bench import count_flops, unit_flops
from headcount.structure import AttentionSite


def by_torch(run) -> int:
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_every_kernel_counts_like_eager_attention(name):
    """Eager attention is plain matrix products, which PyTorch's counter knows without our formula."""
    model = zoo.build(name, attn="eager")
    heads = anatomy(model).heads
    pruned = remove(model, heads[1::2])
    for each in (model, pruned):
        batch = zoo.inputs(name, model=each)
        expected = by_torch(lambda each=each, batch=batch: each(**batch))
        assert expected > 0
        for kernel in zoo.kernels(name):
            each.set_attn_implementation(kernel)
            counted = count_flops(lambda each=each, batch=batch: each(**batch))
            assert counted == pytest.approx(expected, rel=0.01), kernel


def test_it_agrees_with_the_formula():
    hidden, inner, layers, length, batch, vocabulary = 32, 64, 2, 10, 3, 50
    config = BertConfig(vocab_size=vocabulary, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
                        num_attention_heads=4)  # fmt: skip
    model = BertModel(config, add_pooling_layer=False).eval()
    ids = torch.zeros(batch, length, dtype=torch.long)
    projections = 4 * hidden**2 + 2 * hidden * inner
    expected = batch * layers * (2 * length * projections + 4 * length**2 * hidden)
    assert count_flops(lambda: model(ids)) == expected
    half = remove(model, [f"encoder.{layer}.{index}" for layer in range(layers) for index in (0, 1)])
    attention = batch * layers * (2 * length * 4 * hidden**2 + 4 * length**2 * hidden)
    assert count_flops(lambda: half(ids)) == expected - attention // 2


# Their heads also score relative positions, in numbers that do not follow from the length of a text.
SCORES_POSITIONS = ("deberta-v2", "deberta-v2-shared")


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_the_cost_of_a_unit_is_what_its_removal_saves(name):
    model = zoo.build(name)
    batch = zoo.inputs(name, padding=None, model=model)
    if "decoder_input_ids" in batch:  # as long as what the encoder reads, so that there is one length
        length = model.config.max_source_positions if "input_features" in batch else batch["input_ids"].shape[1]
        batch["decoder_input_ids"] = torch.full((3, length), 5)
    whole = count_flops(lambda: model(**batch))
    found = anatomy(model, ["heads", "neurons"])
    for site in found.sites:
        if name in SCORES_POSITIONS and isinstance(site, AttentionSite):
            continue
        # Whole groups: a key-value head goes with its last query head, which then saves the share of all.
        some = site.heads[: len(site.heads) // 2]
        for off in (some, site.heads):
            smaller = remove(model, off)
            saved = whole - count_flops(lambda smaller=smaller: smaller(**batch))
            length = positions_of(model, site, batch)
            assert saved == pytest.approx(3 * length * len(off) * unit_flops(site, length), rel=0.01), site.name
            emptied = anatomy(smaller, ["heads", "neurons"]).site(site.name)
            assert unit_flops(emptied, length) == (0 if off == site.heads else unit_flops(site, length))


def positions_of(model, site, batch) -> int:
    """How many positions of each example a site sees."""
    seen = []
    handle = site.output.register_forward_pre_hook(lambda module, args: seen.append(args[0].numel()))
    with torch.no_grad():
        model(**batch)
    handle.remove()
    return seen[0] // (3 * len(site.kept) * site.width)


def test_attention_with_values_of_another_size():
    query, key, value = torch.ones(2, 3, 5, 8), torch.ones(2, 3, 7, 8), torch.ones(2, 3, 7, 8)
    run = torch.nn.functional.scaled_dot_product_attention
    assert count_flops(lambda: run(query, key, value)) == 2 * (2 * 3 * 5 * 7) * (8 + 8)
    assert count_flops(lambda: run(query, key, value[..., :6])) == 2 * (2 * 3 * 5 * 7) * (8 + 6)


def test_convolutions_and_inference_mode():
    layer = torch.nn.Conv2d(3, 5, 2)
    with torch.inference_mode():
        assert count_flops(lambda: layer(torch.ones(2, 3, 4, 4))) == 2 * (2 * 5 * 3 * 3) * (3 * 2 * 2)


def test_decoding_counts_the_tokens_it_writes():
    from headcount.bench.comparison import flops_of

    model = zoo.build_generator("gpt2")
    one, three = (flops_of({"a": model}, model, 8, tokens)["a"] for tokens in (1, 3))
    assert 3 * one < three < 3.2 * one  # every token attends to one more
