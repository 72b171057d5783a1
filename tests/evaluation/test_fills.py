"""Outputs on other examples in a head's place: by replay, by the plain path, and by hooks one example at a time."""

from __future__ import annotations

import json
import re
from functools import partial

import numpy as np
import pytest
import torch

import zoo
from headcount import (
    Classification,
    HeadcountError,
    LikeliestEnding,
    ablate_each,
    anatomy,
    evaluate,
    load_task,
    unlabeled,
)
from headcount.errors import BadData
from headcount.evaluation.fills import counterfactual, resampled
from headcount.tasks.text import word_tokenizer
from oracle import places
from probe import EXAMPLES, Probe
from tiny_models import bert, gpt, marian

TOLERANCE = 1e-5
SOME = ["bert", "albert", "deberta-v2", "gpt2", "llama", "t5", "bart", "vit"]
WORDS = "a the fine dull film dog cat was seen by all of us"


class Drawn(Probe):
    """Examples of the zoo by their number, in any order and as often as named."""

    def __init__(self, name, model, chosen=range(EXAMPLES), seed=0):
        super().__init__(name, model)
        if seed:
            self.inputs = zoo.inputs(name, batch=EXAMPLES, seed=seed, model=model)
            mask = Probe(name, model).inputs.get("attention_mask")
            self.inputs |= {} if mask is None else {"attention_mask": mask}
        self.model, self.chosen, self.seed = model, list(chosen), seed

    def __len__(self):
        return len(self.chosen)

    @property
    def lengths(self):
        return [9] * len(self.chosen)

    def batch(self, indices):
        found = super().batch([self.chosen[i] for i in indices])
        return type(found)(found.inputs, None, tuple(indices))

    def subset(self, indices):
        return Drawn(self.name, self.model, [self.chosen[i] for i in indices], self.seed)


def agree(one, other):
    return float((np.abs(one.values - other.values) / np.maximum(1.0, np.abs(other.values))).max())


def masks_of(model):
    """At every site one head and all but one; heads of several sites; some neurons."""
    found = anatomy(model)
    masks = [(), *(mask for site in found.sites for mask in (site.heads[1:2], site.heads[1:]))]
    neurons = anatomy(model, "neurons").heads
    return [*masks, (found.heads[0], found.heads[-1]), (*neurons[:3], found.heads[0])]


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_every_family_replays_to_the_plain_path(name):
    model = zoo.build(name)
    task, masks = Drawn(name, model), masks_of(model)
    ways = [
        {"fill": "resample", "draws": 2, "seed": 3},
        {"fill": "counterfactual", "against": Drawn(name, model, seed=5)},
    ]
    zero = evaluate(model, task, masks)
    for way in ways:
        fast = evaluate(model, task, masks, tokens=27, stacked=81, **way)
        assert agree(fast, evaluate(model, task, masks, fast=False, **way)) < TOLERANCE
        assert agree(fast, zero) > 1e-2
        assert np.array_equal(fast.values[0], evaluate(model, task, tokens=27).values[0])


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "llama"])
def test_models_that_read_one_position_replay_too(name):
    model = zoo.build(name, zoo.ZOO[name].classes[-1 if zoo.ZOO[name].reads == "prompt" else 1])
    task, masks = Drawn(name, model), masks_of(model)
    way = {"fill": "resample", "draws": 2}
    assert agree(evaluate(model, task, masks, **way), evaluate(model, task, masks, fast=False, **way)) < TOLERANCE


def context_of(model, output, run):
    """What enters a projection, in each of its calls."""
    seen = []
    handle = model.get_submodule(output).register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
    with torch.no_grad():
        run()
    handle.remove()
    return seen


def patched(model, name, task, head, own, other):
    """The statistics of example `own` with the head's output of example `other`, by a hook, token by token."""
    site, _, index = head.rpartition(".")
    place = places(model, name)[site]
    columns = slice(int(index) * place.head_dim, (int(index) + 1) * place.head_dim)
    donors = iter(context_of(model, place.output, lambda: model(**other)))
    reads_source = zoo.ZOO[name].reads in ("text", "prompt") or site.startswith("encoder")
    masked = reads_source and "attention_mask" in other

    def before(module, args):
        context, donor = args[0].clone(), next(donors)
        length = int(other["attention_mask"].sum()) if masked else donor.shape[1]
        for token in range(context.shape[1]):
            context[0, token, columns] = donor[0, token % length, columns]
        return (context, *args[1:])

    handle = model.get_submodule(place.output).register_forward_pre_hook(before)
    with torch.no_grad():
        outputs = zoo.main_output(model(**own), own.get("attention_mask"))
    handle.remove()
    return task.statistics(outputs, None)[0].numpy()


@pytest.mark.parametrize("name", SOME)
def test_resampling_is_what_hooks_by_hand_give(name):
    model = zoo.build(name)
    task = Drawn(name, model)
    sites = list(places(model, name))
    heads = [f"{sites[0]}.1", f"{sites[-1]}.0"]
    found = evaluate(model, task, [(), *([head] for head in heads)], fill="resample", draws=2, seed=3)
    donors = resampled(task, draws=2, seed=3).donors
    for row, head in enumerate(heads, start=1):
        for example in range(EXAMPLES):
            own = task.batch([example]).inputs
            each = [patched(model, name, task, head, own, donor.batch([example]).inputs) for donor in donors]
            assert np.allclose(found.values[row, example], np.mean(each, axis=0), rtol=TOLERANCE, atol=TOLERANCE)


def test_draws_are_those_of_the_seed_and_never_the_example_itself():
    model = zoo.build("bert")
    task = Drawn("bert", model)
    first, again, other = (resampled(task, draws=6, seed=seed) for seed in (1, 1, 2))
    drawn = [[donor.chosen for donor in paired.donors] for paired in (first, again, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(sorted(donor) == list(range(EXAMPLES)) for donor in drawn[0])
    assert all(donor[i] != i for donor in drawn[0] for i in range(EXAMPLES))
    part = first.subset([3, 1])
    assert [donor.chosen for donor in part.donors] == [[donor[3], donor[1]] for donor in drawn[0]]
    assert part.task.chosen == [3, 1]


def test_the_same_example_in_a_heads_place_changes_nothing():
    model = zoo.build("llama")
    task = Drawn("llama", model)
    found = evaluate(model, task, masks_of(model), fill="counterfactual", against=Drawn("llama", model))
    assert np.abs(found.values - found.values[:1]).max() < TOLERANCE


def sentences(seed, size=10):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS.split(), size=2 + i % 5)) for i in range(size)]


def classification(seed, **options):
    rows = [{"text": text, "label": i % 2} for i, text in enumerate(sentences(seed))]
    return Classification(rows, word_tokenizer(WORDS), **options)


def test_texts_of_other_lengths_start_again():
    """A classifier's own examples, of three to seven tokens: replay, plain path, shards and a resumed run agree."""
    model, task = bert(), classification(0, metric="loss")
    masks = [(), *([head] for head in anatomy(model).heads)]
    way = {"fill": "resample", "draws": 3}
    fast = evaluate(model, task, masks, **way)
    assert agree(fast, evaluate(model, task, masks, fast=False, **way)) < TOLERANCE
    assert agree(fast, evaluate(model, task, masks, tokens=9, **way)) < TOLERANCE
    assert (fast.values[..., 0] == 1).all()  # averages over draws count an example once


def test_runs_resume_and_refuse_another_fill(tmp_path):
    model, task = bert(), classification(0)
    masks = [(), ["encoder.0.1"]]
    first = evaluate(model, task, masks, fill="resample", draws=2, run=tmp_path / "run")
    assert np.array_equal(
        evaluate(model, task, masks, fill="resample", draws=2, run=tmp_path / "run").values, first.values
    )
    for other in ({"draws": 3}, {"draws": 2, "seed": 9}):
        with pytest.raises(HeadcountError, match="run"):
            evaluate(model, task, masks, fill="resample", run=tmp_path / "run", **other)


def test_ablations_take_all_fills_and_test_them():
    model, task = bert(), classification(0)
    exact = ablate_each(model, task, fill="counterfactual", against=classification(1))
    averaged = ablate_each(model, task, fill="resample", draws=3)
    assert exact.effects.test == "exact McNemar"
    assert averaged.effects.test == "paired bootstrap"  # an average of draws is not right or wrong
    assert (
        (averaged.effects.low <= averaged.effects.change) & (averaged.effects.change <= averaged.effects.high)
    ).all()
    assert len({tuple(one.effects.change) for one in (exact, averaged, ablate_each(model, task))}) == 3


def test_tasks_without_labels_are_patched_too():
    model = bert()
    task = unlabeled(classification(0), model)
    found = evaluate(model, task, [(), ["encoder.1.1"]], fill="resample", draws=2)
    assert np.isfinite(found.values).all()
    assert agree(found, evaluate(model, task, [(), ["encoder.1.1"]], fill="resample", draws=2, fast=False)) < TOLERANCE


# ------------------------------------------------------------------------------------------------ logit difference


def endings(seed, **options):
    rows = [
        {"text": text, "choices": ["dog", "cat"] if i % 2 else ["film", "fine", "dog"], "label": i % 2}
        for i, text in enumerate(sentences(seed))
    ]
    return LikeliestEnding(rows, word_tokenizer(WORDS, "gpt"), metric="logit_difference", **options)


def test_the_logit_difference_of_two_answers_of_a_language_model():
    """Answers of one token each: the difference of their logits after the text, as the model gives them."""
    model, task = gpt(), endings(0)
    ids = word_tokenizer(WORDS, "gpt")
    differences = []
    for i, text in enumerate(sentences(0)):
        with torch.no_grad():
            logits = model(torch.tensor([ids(text)["input_ids"]])).logits[0, -1]
        right, *others = ("cat", "dog") if i % 2 else ("film", "fine", "dog")
        of = {word: float(logits[ids(word)["input_ids"][0]]) for word in (right, *others)}
        differences.append(of[right] - max(of[word] for word in others))
    outcomes = evaluate(model, task)
    assert outcomes.values[0, :, 3] == pytest.approx(differences, abs=1e-4)
    assert outcomes.score() == pytest.approx(np.mean(differences), abs=1e-4)


def test_patching_a_language_model_by_its_logit_difference():
    """Examples of several rows, two or three answers each: replay and the plain path agree."""
    model, clean, corrupted = gpt(), endings(0), endings(1)
    masks = [(), *([head] for head in anatomy(model).heads)]
    for way in ({"fill": "counterfactual", "against": corrupted}, {"fill": "resample", "draws": 2}):
        fast = evaluate(model, clean, masks, **way)
        assert agree(fast, evaluate(model, clean, masks, fast=False, **way)) < TOLERANCE
    every = [(), anatomy(model).heads]  # everything that attention moves comes from the corrupted text
    whole = evaluate(model, clean, every, fill="counterfactual", against=corrupted)
    assert whole.scores()[1] != pytest.approx(whole.scores()[0])


def test_the_logit_difference_of_a_classifier():
    model, task = bert(num_labels=3), classification(0, metric="logit_difference", num_labels=3)
    with torch.no_grad():
        logits = torch.cat([task.outputs(model, task.batch([i])) for i in range(len(task))]).numpy()
    expected = [row[i % 2] - max(np.delete(row, i % 2)) for i, row in enumerate(logits)]
    outcomes = evaluate(model, task)
    assert outcomes.score() == pytest.approx(np.mean(expected), abs=1e-5)
    assert ((outcomes.values[0, :, 3] > 0) == outcomes.values[0, :, 1]).all()


# -------------------------------------------------------------------------------------------------------- refusals


def test_pairs_of_unequal_length_are_refused_by_file_and_line(tmp_path):
    for name, line in (("clean", "the dog was seen"), ("corrupted", "the dog was seen by")):
        lines = ["text\tlabel", "a fine film\t1", f"{line}\t0"]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    tasks = [
        load_task("classification", str(tmp_path / f"{n}.tsv"), word_tokenizer(WORDS)) for n in ("clean", "corrupted")
    ]
    says = r"corrupted\.tsv, line 3: 7 tokens.*clean\.tsv, line 3 has 6.*against="
    with pytest.raises(BadData, match=says):
        evaluate(bert(), tasks[0], fill="counterfactual", against=tasks[1])
    with pytest.raises(BadData, match=r"2 examples.*1.*against="):
        counterfactual(tasks[0], tasks[1].subset([0]))


def test_a_target_of_another_length_is_refused_and_a_shorter_one_starts_again():
    """A decoder's positions are those of the target, also where source and target are as long as each other."""
    tokenizer, model = word_tokenizer(WORDS, "marian"), marian()
    pairs = [("a dog was seen", "the cat"), ("a cat was seen", "us all of us")]
    task, other = (load_task("translation", [{"source": s, "target": t} for s, t in rows], tokenizer, metric="loss")
                   for rows in (pairs, [*pairs[:1], ("the cat was seen", "a fine film")]))  # fmt: skip
    with pytest.raises(BadData, match=r"example 1: 4 tokens of its target.* 5"):
        counterfactual(task, other)
    found = evaluate(model, task, [["decoder.0.1"]], fill="resample", draws=1)
    expected = []
    for own, donor in ((0, 1), (1, 0)):
        batches = [task.batch([index]) for index in (own, donor)]
        (given,) = context_of(
            model, "model.decoder.layers.0.self_attn.out_proj", partial(task.outputs, model, batches[1])
        )

        def before(module, args, given=given):
            context = args[0].clone()
            for token in range(context.shape[1]):
                context[:, token, 4:8] = given[:, token % given.shape[1], 4:8]
            return (context, *args[1:])

        handle = model.model.decoder.layers[0].self_attn.out_proj.register_forward_pre_hook(before)
        with torch.no_grad():
            expected.append(task.statistics(task.outputs(model, batches[0]), batches[0])[0].numpy())
        handle.remove()
    assert np.allclose(found.values[0], expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fill": "mode"}, "'mode'.*counterfactual, mean, resample, zero"),
        ({"fill": "counterfactual"}, "counterfactual.*against="),
        ({"fill": "mean", "against": 1}, "against="),
        ({"fill": "resample", "draws": 0}, "draws=.*1"),
    ],
)
def test_fills_that_cannot_be_made(options, says):
    with pytest.raises(HeadcountError, match=says):
        evaluate(bert(), classification(0), **options)


def test_pairs_without_a_fill_that_uses_them():
    with pytest.raises(HeadcountError, match=r"mean.*fill=.*against="):
        evaluate(bert(), classification(0), fill="mean", against=classification(1))
    with pytest.raises(HeadcountError, match="two examples"):
        evaluate(bert(), classification(0).subset([0]), fill="resample")


def test_generated_texts_cannot_be_patched():
    rows = [{"source": text, "target": text} for text in sentences(0, 3)]
    task = load_task("translation", rows, word_tokenizer(WORDS, "marian"))
    with pytest.raises(HeadcountError, match=r"resample.*bleu.*metric="):
        evaluate(marian(), task, fill="resample")
    loss = load_task("translation", rows, word_tokenizer(WORDS, "marian"), metric="loss")
    masks = [(), ["decoder.0.1"], ["cross.1.2"], ["encoder.0.0"]]
    found = evaluate(marian(), loss, masks, fill="resample", draws=2)
    assert agree(found, evaluate(marian(), loss, masks, fill="resample", draws=2, fast=False)) < TOLERANCE
    assert np.isfinite(json.loads(json.dumps(found.values.tolist()))).all()


def test_the_example_of_the_documentation_prints_what_is_shown(repository, capsys):
    page = (repository / "docs/evaluation.md").read_text(encoding="utf-8")
    ((code, shown),) = re.findall(r"```python\n((?:(?!```).)*counterfactual.*?)```\n\n```text\n(.*?)```", page, re.S)
    exec(code, {})
    assert capsys.readouterr().out.strip() == shown.strip()
