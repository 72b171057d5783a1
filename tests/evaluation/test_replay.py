"""Replay gives the reference's outcomes: every family, every site, one head, several heads, all but one."""

import numpy as np
import pytest
import torch

import zoo
from headcount import anatomy, evaluate
from headcount.evaluation import mean_contexts
from headcount.evaluation.last_position import find_last_position
from headcount.evaluation.recording import record
from headcount.evaluation.replay import Replay
from headcount.evaluation.sweep import make_plan, read_masks
from headcount.structure import whole_anatomy
from headcount.surgery import remove
from probe import Probe


def masks_of(model):
    """At every site: one head off, two off, all but one off, all off; and two masks over several sites."""
    found = anatomy(model)
    masks = [()]
    for site in found.sites:
        masks += [site.heads[:1], site.heads[-1:], site.heads[1:3], site.heads[1:], site.heads]
    masks += [(found.heads[0], found.heads[-1]), found.heads[::2]]
    return masks


def agree(fast, plain):
    scale = np.maximum(1.0, np.abs(plain.values))
    return float((np.abs(fast.values - plain.values) / scale).max())


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_every_family_replays_to_the_reference(name):
    model = zoo.build(name)
    task, masks = Probe(name, model), masks_of(model)
    fast = evaluate(model, task, masks, tokens=27, stacked=81)
    plain = evaluate(model, task, masks, fast=False)
    assert agree(fast, plain) < 1e-5
    changed = np.abs(plain.values[1:] - plain.values[:1]).max(axis=(1, 2))
    assert (changed > 1e-4).mean() > 0.9  # the masks do something, so agreeing means something


@pytest.mark.parametrize("name", ["bert", "distilbert", "vit", "gpt2", "llama", "t5", "bart", "bloom", "deberta-v2"])
def test_task_heads_that_read_one_position_replay_too(name):
    cls = zoo.ZOO[name].classes[1]
    model = zoo.build(name, cls)
    task, masks = Probe(name, model), masks_of(model)
    assert agree(evaluate(model, task, masks), evaluate(model, task, masks, fast=False)) < 1e-5


@pytest.mark.parametrize("name", ["bert", "distilbert", "vit", "gpt2", "llama", "t5", "bart", "bloom", "deberta-v2"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_model_with_an_empty_sublayer_replays_too(name, number):
    """Whichever sublayer is empty: the first or last attention or feed-forward layer of each kind."""
    model = zoo.build(name, zoo.ZOO[name].classes[number])
    ends = {site.kind: site.name for site in whole_anatomy(model).sites}  # the last of each kind
    starts = {site.kind: site.name for site in reversed(whole_anatomy(model).sites)}
    for empty in {*ends.values(), *starts.values()}:
        smaller = remove(model, empty)
        task, found = Probe(name, smaller), anatomy(smaller)
        masks = [(), *([head] for head in found.heads[::3]), *(site.heads for site in found.sites if site.kept)]
        fast, plain = (evaluate(smaller, task, masks, fast=way) for way in (True, False))
        assert agree(fast, plain) < 1e-5, empty


@pytest.mark.parametrize("name", ["bert", "vit", "clip"])
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize("padding", ["left", "right", None])
def test_single_position_shortcut_respects_padding_and_kernels(name, attn, padding):
    cls = {"clip": "CLIPVisionModel"}.get(name, zoo.ZOO[name].classes[1])
    model = zoo.build(name, cls, attn=attn)
    task, masks = Probe(name, model, padding), masks_of(model)
    assert agree(evaluate(model, task, masks), evaluate(model, task, masks, fast=False)) < 1e-5


def last_position(model, padding="right"):
    task = Probe("bert", model, padding)
    batch = task.batch(range(len(task)))
    with torch.no_grad():
        recording = record(anatomy(model), len(batch), lambda: task.outputs(model, batch))
        return find_last_position(recording, lambda: task.outputs(model, batch))


def test_a_classifier_is_seen_to_read_its_first_token_only():
    model = zoo.build("bert", "BertForSequenceClassification")
    position = last_position(model)
    assert position.positions.tolist() == [0] * len(position.positions)
    assert position.allows(anatomy(model).sites[0])


def test_a_language_model_reads_every_position():
    assert last_position(zoo.build("bert", "BertForMaskedLM"), padding=None) is None


def test_layers_below_the_mask_do_not_run():
    model = zoo.build("bert", "BertForMaskedLM")
    task, found = Probe("bert", model), anatomy(model)
    batch = task.batch(range(len(task)))
    with torch.inference_mode():
        recording = record(found, len(batch), lambda: task.outputs(model, batch))
        ran = []
        hooks = [
            site.block.intermediate.register_forward_hook(lambda *_, layer=site.layer: ran.append(layer))
            for site in found.sites
        ]
        attended = []
        hooks += [
            site.module.query.register_forward_hook(lambda *_, layer=site.layer: attended.append(layer))
            for site in found.sites
        ]
        xi = torch.ones(2, len(found.heads))
        xi[0, 4], xi[1, 5] = 0, 0  # two heads of layer 1
        Replay(model, found, recording, found.sites[1]).run(xi, lambda: task.outputs(model, batch.repeat(2)))
        for hook in hooks:
            hook.remove()
    assert ran == [1, 2]
    assert attended == [2]


def test_nothing_is_left_behind_also_after_an_error():
    model = zoo.build("t5")
    task, found = Probe("t5", model), anatomy(model)
    batch = task.batch(range(len(task)))

    def fail():
        task.outputs(model, batch.repeat(1))
        raise KeyboardInterrupt

    with torch.inference_mode():
        before = task.outputs(model, batch)
        recording = record(found, len(batch), lambda: task.outputs(model, batch))
        with pytest.raises(KeyboardInterrupt):
            Replay(model, found, recording, found.sites[4]).run(torch.zeros(1, len(found.heads)), fail)
        after = task.outputs(model, batch)
    assert torch.equal(before, after)
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_mean_ablation_replays_to_the_reference_and_differs_from_zero(name):
    model = zoo.build(name)
    task = Probe(name, model)
    fill = mean_contexts(model, task)
    masks = masks_of(model)
    fast, plain = evaluate(model, task, masks, fill=fill), evaluate(model, task, masks, fill=fill, fast=False)
    zero = evaluate(model, task, masks)
    assert agree(fast, plain) < 1e-5
    assert agree(fast, zero) > 1e-2


def test_means_are_those_of_the_heads_outputs_without_padding():
    model = zoo.build("bert")
    task = Probe("bert", model)
    batch = task.batch(range(len(task)))
    site = anatomy(model).sites[1]
    inputs = []
    hook = site.output.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    with torch.no_grad():
        task.outputs(model, batch)
    hook.remove()
    rows = inputs[0][batch.inputs["attention_mask"].bool()]  # (tokens, heads * head_dim)
    expected = rows.mean(dim=0).view(len(site.kept), site.head_dim)
    assert torch.allclose(mean_contexts(model, task)[site.name], expected, atol=1e-6)


def test_stacking_does_not_change_outcomes():
    model = zoo.build("gpt2")
    task, masks = Probe("gpt2", model), masks_of(model)
    small, large = (evaluate(model, task, masks, stacked=size) for size in (1, 100_000))
    assert agree(small, large) < 1e-6


def test_plan_replays_one_site_prunes_several_and_falls_back():
    model = zoo.build("bert")
    found = anatomy(model)
    heads = found.heads
    masks = read_masks(found, [(), heads[:1], heads[:2], (heads[0], heads[-1])])
    plan = make_plan(model, Probe("bert", model), masks)
    assert plan.whole
    assert plan.replayed == {"encoder.0": [frozenset(heads[:1]), frozenset(heads[:2])]}
    assert plan.pruned == [frozenset({heads[0], heads[-1]})]
    slow = make_plan(model, Probe("bert", model), masks, fast=False)
    assert slow.plain == list(masks[1:])
    assert not slow.replayed
    shared = zoo.build("albert")
    plan = make_plan(shared, Probe("albert", shared), [frozenset(anatomy(shared).heads[:1])])
    assert len(plan.plain) == 1
    assert not plan.whole
