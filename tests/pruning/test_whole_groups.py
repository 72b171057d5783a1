"""`groups="whole"`: query heads go only with their key-value head, the cache shrinks, and groups stay even."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import zoo
from headcount import HeadcountError, anatomy, prune, remove
from headcount.heads import Head
from headcount.pruning.search_methods import by_fisher, candidates_of, in_groups, pick_groups
from headcount.structure import cache_bytes
from headcount.surgery import as_stock
from headcount.tasks import LanguageModeling
from headcount.tasks.text import word_tokenizer

WORDS = "one two three four five six seven eight"


def texts(start, count):
    words = WORDS.split()
    return [{"text": " ".join(words[(start + i * k) % 8] for i in range(1, 7))} for k in range(1, count + 1)]


@pytest.fixture
def job():
    """A small grouped generator, and three data sets for it."""
    tasks = [LanguageModeling(texts(start, 6), word_tokenizer(WORDS), masked=False) for start in (0, 1, 2)]
    return zoo.build("llama", "LlamaForCausalLM"), *tasks


@pytest.mark.parametrize(
    "knobs", [{"heads": "50%"}, {"max_drop": 1e6}, {"flops": "60%"}, {"params": "5%", "units": "heads"}]
)
@pytest.mark.parametrize("method", ["search", "michel"])
def test_groups_go_whole(job, knobs, method):
    model, *tasks = job
    pruned = prune(model, *tasks, groups="whole", method=method, overlap="allow", **knobs)
    heads = [head for head in pruned.removed if not head.is_neuron]
    assert heads
    for site in anatomy(pruned.model).sites:
        assert site.layout.is_even or not site.kept
        assert len(site.kept) == site.group * len(site.kv_kept)
    assert pruned.cache_after < pruned.cache_before == cache_bytes(model)
    assert pruned.to_json()["cache_after"] == cache_bytes(pruned.model)
    assert any(f"{pruned.cache_after:,} after" in line for line in pruned.findings() if line.startswith("Cache"))


def test_keep_at_least_counts_whole_groups(job):
    model, *tasks = job
    pruned = prune(model, *tasks, groups="whole", heads=0.9, keep_at_least=3, overlap="allow")
    assert all(len(site.kv_kept) >= 2 for site in anatomy(pruned.model).sites)


def test_a_group_is_chosen_by_its_summed_gradient():
    """Two heads whose gradients cancel cost nothing together, however large each is: the slow formula says so."""
    found = anatomy(zoo.build("llama"))
    heads = list(found.heads)
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(20, len(heads)))
    gradients[:, 5] = -gradients[:, 4] + 0.001
    groups = in_groups(found, heads)
    picked = pick_groups(by_fisher, groups, gradients, heads, 2, np.ones(len(heads), bool))
    costs = [np.mean([(sum(row[place] for place in group)) ** 2 for row in gradients]) for group in groups]
    assert picked == groups[int(np.argmin(costs))] == [4, 5]
    losses = {head: float(place) for place, head in enumerate(heads)}
    few = candidates_of(
        found, losses, [site.name for site in found.sites], uniform=False, keep_at_least=0, groups="whole"
    )
    assert [len(one.units) for one in few] == [2] * (len(heads) // 2)
    assert few[0].loss == 1.0
    assert few[0].units == (Head("decoder", 0, 0), Head("decoder", 0, 1))


def test_bytes_of_the_cache_are_those_that_it_has():
    """Counted here from a cache that was filled."""
    model = zoo.build("llama", "LlamaForCausalLM")
    smaller = remove(model, [f"decoder.0.{index}" for index in range(8)] + ["decoder.1.0", "decoder.1.1"])
    for each in (model, smaller):
        cache = each(input_ids=torch.tensor([[5, 6, 7, 8]]), use_cache=True).past_key_values
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        assert cache_bytes(each) == held / 4
    assert cache_bytes(smaller, original=True) == cache_bytes(model)
    assert cache_bytes(zoo.build("bert")) == 0


def test_even_groups_in_every_layer_are_stock(job):
    model, *tasks = job
    pruned = prune(model, *tasks, groups="whole", uniform=True, heads="50%", overlap="allow")
    assert as_stock(pruned.model)[1]["num_key_value_heads"] == 2


def test_a_wrong_word(job):
    model, *tasks = job
    with pytest.raises(HeadcountError, match="whole"):
        prune(model, *tasks, groups="hole", heads="50%")


def test_models_without_groups_are_cut_as_before(job):
    model, tasks = zoo.build("gpt2", "GPT2LMHeadModel"), job[1:]
    plain, grouped = (prune(model, *tasks, heads=5, groups=how, overlap="allow").removed for how in ("any", "whole"))
    assert plain == grouped
