"""The central test: a unit masked with zero, its projection columns zeroed, and the unit removed are the same.

Units are heads, neurons of feed-forward layers, and whole sublayers.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import zoo
from headcount import anatomy, masked, remove
from oracle import all_heads, neuron_places, off_by, parameters, places, run, weight_of, zeroed

TOLERANCE = 1e-5
GENERATORS = [name for name in zoo.FAMILIES if zoo.generates(name)]
few = settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@functools.cache
def whole(name: str, generator: bool = False) -> Any:
    """The family's model, built once; the tests leave it as it was."""
    return zoo.build_generator(name) if generator else zoo.build(name)


def agree(name: str, heads: list[str], named: list[str] | None = None) -> None:
    """Mask, zero and remove the heads under every kernel and padding, and compare.

    named: how headcount is told of them, where whole sublayers are named as such.
    """
    model = whole(name)
    named = heads if named is None else named
    silent, smaller = zeroed(model, name, heads), remove(model, named)
    assert parameters(model) - parameters(smaller) == weight_of(model, name, heads)
    for kernel in zoo.kernels(name):
        for each in (model, silent, smaller):
            each.set_attn_implementation(kernel)
        for side in ("left", "right"):
            batch = zoo.inputs(name, padding=side)
            expected = run(silent, batch)
            with masked(model, off=named):
                assert off_by(run(model, batch), expected) <= TOLERANCE
            assert off_by(run(smaller, batch), expected) <= TOLERANCE


def heads_at(name: str, *sites: str) -> list[str]:
    return [head for head in all_heads(places(whole(name), name)) if head.rpartition(".")[0] in sites]


def kinds_of(name: str) -> dict[str, list[str]]:
    """Kind -> its sites, as the test's own table sees them."""
    kinds: dict[str, list[str]] = {}
    for site in places(whole(name), name):
        kinds.setdefault(site.split(".")[0], []).append(site)
    return kinds


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_anatomy_finds_the_sites_of_the_table(name):
    expected = {site: place.heads for site, place in places(whole(name), name).items()}
    found = anatomy(whole(name))
    assert {site.name: len(site.heads) for site in found.sites} == expected
    assert [str(head) for head in found.heads] == all_heads(places(whole(name), name))


@pytest.mark.parametrize("name", zoo.FAMILIES)
@given(data=st.data())
@few
def test_random_heads(name, data):
    heads = data.draw(st.sets(st.sampled_from(all_heads(places(whole(name), name))), min_size=1))
    agree(name, sorted(heads))


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_whole_sites_emptied(name):
    first = [sites[0] for sites in kinds_of(name).values()]
    last = [sites[-1] for sites in kinds_of(name).values()]
    agree(name, heads_at(name, *first))
    agree(name, heads_at(name, *last))


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_all_heads_of_a_kind_emptied(name):
    kinds = kinds_of(name)
    for sites in kinds.values():
        agree(name, heads_at(name, *sites))
    if len(kinds) > 1:
        agree(name, heads_at(name, *(site for sites in kinds.values() for site in sites)))
    assert sum(map(len, kinds.values())) == len(anatomy(whole(name)).sites)


def some_neurons(name: str) -> list[str]:
    """Other neurons in every layer, about a third of them."""
    neurons = all_heads(neuron_places(whole(name), name))
    return [neuron for neuron in neurons if hash_of(neuron) % 3 == 0]


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_feed_forward_sites_are_those_of_the_table(name):
    model = whole(name)
    expected = neuron_places(model, name)
    found = anatomy(model, "neurons")
    assert {site.name: (site.path, len(site.kept)) for site in found.sites} == {
        site: (place.output, place.heads) for site, place in expected.items()
    }
    assert [str(unit) for unit in found.units] == all_heads(expected)
    both = anatomy(model, ["neurons", "heads"])
    assert both.units == (*anatomy(model).heads, *found.units)
    assert anatomy(model, "sublayers").units == tuple(site.name for site in both.sites)
    assert [site.also_layers for site in found.sites] == [
        site.also_layers for site in anatomy(model).sites if site.kind != "cross"
    ]


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_neurons_and_whole_sublayers(name):
    layers = list(neuron_places(whole(name), name))
    agree(name, some_neurons(name))
    for sublayer in {layers[0], layers[-1]}:  # by its name, and neuron by neuron
        neurons = [f"{sublayer}.{index}" for index in range(neuron_places(whole(name), name)[sublayer].heads)]
        agree(name, neurons, named=[sublayer])


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_heads_neurons_and_sublayers_together(name):
    """Some heads and neurons; the first layer of each kind, attention and feed-forward, emptied; then everything."""
    model = whole(name)
    sites = {**places(model, name), **neuron_places(model, name)}
    every = all_heads(sites)
    first = {f"{kind}.0" for kind in {site.split(".")[0] for site in sites}} if len(sites) > 4 else set()
    some = [unit for unit in every if hash_of(unit) % 3 == 0 and unit.rpartition(".")[0] not in first]
    agree(name, some + [unit for unit in every if unit.rpartition(".")[0] in first], named=[*some, *sorted(first)])
    agree(name, every, named=list(sites))


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_removing_twice_is_removing_at_once(name):
    model = whole(name)
    heads = all_heads({**places(model, name), **neuron_places(model, name)})
    first, second = heads[1::3], heads[2::3]
    twice = remove(remove(model, first), second)
    at_once = remove(model, first + second)
    left = [str(unit) for unit in anatomy(twice, ["heads", "neurons"]).units]
    assert left == heads[0::3]  # original names
    assert left == [str(unit) for unit in anatomy(at_once, ["heads", "neurons"]).units]
    state = at_once.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in twice.state_dict().items())
    batch = zoo.inputs(name)
    assert torch.equal(run(twice, batch), run(at_once, batch))
    emptied = remove(twice, left)
    assert off_by(run(emptied, batch), run(zeroed(model, name, heads), batch)) <= TOLERANCE


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_every_task_head_has_the_same_sites(name):
    for class_name in zoo.ZOO[name].classes:
        model = zoo.build(name, class_name)
        sites = {site.name: len(site.kept) for site in anatomy(model).sites}
        expected = {site: place.heads for site, place in places(model, name).items()}
        assert sites == expected
        assert len(sites) > 0
        heads = [head for head in all_heads(places(model, name)) if hash_of(head) % 3]
        batch = zoo.inputs(name, model=model)
        with masked(model, off=heads):
            expected_output = run(model, batch)
        assert off_by(run(remove(model, heads), batch), expected_output) <= TOLERANCE


def hash_of(head: str) -> int:
    """Python's own hash of texts differs between runs."""
    return sum(map(ord, head))


def in_generation(name: str) -> dict[str, list[str]]:
    """Head sets that are hard on a cache: the decoder's first layer, first and all cross-attention, everything."""
    kinds = kinds_of(name)
    sets = {
        "some": [head for head in all_heads(places(whole(name), name)) if hash_of(head) % 3],
        "first layer": heads_at(name, kinds["decoder"][0]),
        "everything": heads_at(name, *(site for sites in kinds.values() for site in sites)),
        "neurons": [*some_neurons(name), kinds["decoder"][0], *heads_at(name, kinds["decoder"][-1])[:2]],
    }
    if "cross" in kinds:
        sets["first cross"] = heads_at(name, kinds["cross"][0])
        sets["first layer"] += heads_at(name, kinds["encoder"][-1])
    return sets


@pytest.mark.parametrize("name", GENERATORS)
def test_greedy_generation_with_a_cache(name):
    model = whole(name, generator=True)
    for what, heads in in_generation(name).items():
        settings = {"return_dict_in_generate": True, "output_logits": True, "new_tokens": 4}
        with masked(model, off=heads):
            expected = zoo.generate(model, name, **settings)
        others = [remove(model, heads), *([zeroed(model, name, heads)] if what == "some" else [])]
        for other in (zoo.generate(each, name, **settings) for each in others):
            assert torch.equal(other.sequences, expected.sequences)
            for one, two in zip(other.logits, expected.logits, strict=True):
                assert off_by(one, two) <= TOLERANCE


@pytest.mark.parametrize("name", GENERATORS)
def test_beam_search_with_a_cache(name):
    model = whole(name, generator=True)
    for what in ("some", "first layer"):
        heads = in_generation(name)[what]
        with masked(model, off=heads):
            expected = zoo.generate(model, name, beams=3, new_tokens=4)
        for each in (remove(model, heads), *([zeroed(model, name, heads)] if what == "some" else [])):
            assert torch.equal(zoo.generate(each, name, beams=3, new_tokens=4), expected)


@pytest.mark.parametrize("name", GENERATORS)
def test_emptied_first_decoder_layer_does_not_break_the_cache(name):
    """`get_seq_length()` reads layer 0, and a tensor without heads counts as empty: logits would go wrong, silently."""
    model = remove(whole(name, generator=True), in_generation(name)["first layer"])
    batch = zoo.inputs(name, padding="left", length=8)
    key = "decoder_input_ids" if "decoder_input_ids" in batch else "input_ids"
    ids, mask = batch.pop(key), batch.pop("attention_mask", None)
    with torch.no_grad():
        at_once = model(**{**batch, key: ids}, **masks(key, mask, ids.shape[1]), use_cache=False).logits
        cache, steps = None, []
        for start, end in ((0, 3), (3, 4), (4, 5), (5, ids.shape[1])):
            output = model(
                **{**batch, key: ids[:, start:end]}, **masks(key, mask, end), past_key_values=cache, use_cache=True
            )
            cache = output.past_key_values
            assert cache.get_seq_length() == end
            steps.append(output.logits)
    together = torch.cat(steps, dim=1)
    if key == "input_ids":
        together, at_once = together * mask[..., None], at_once * mask[..., None]
    assert off_by(together, at_once) <= TOLERANCE


def masks(key: str, mask: Any, end: int) -> dict[str, Any]:
    if mask is None:
        return {}
    return {"attention_mask": mask[:, :end] if key == "input_ids" else mask}
