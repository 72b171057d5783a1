"""The engine on real models and data: published scores, the reference's outcomes, sacrebleu's digits."""

import numpy as np
import pytest
import sacrebleu
import torch
from transformers import AutoTokenizer

from headcount import Classification, Translation, ablate_each, anatomy, evaluate, importance, load, remove

pytestmark = pytest.mark.slow


@pytest.fixture
def sentiment(shared):
    directory = shared / "models" / "minilm-sst2"
    task = Classification(shared / "data" / "sst2" / "dev.tsv", AutoTokenizer.from_pretrained(directory))
    return load(directory, dtype=torch.float32), task


@pytest.fixture
def translator(shared):
    directory, data = shared / "models" / "multi30k-en-fr", shared / "data" / "multi30k"
    tokenizer = AutoTokenizer.from_pretrained(directory)
    return load(directory, dtype=torch.float32), Translation(data / "val.en", tokenizer, target_data=data / "val.fr")


def test_accuracy_is_the_published_one(sentiment):
    model, task = sentiment
    assert evaluate(model, task).score() == pytest.approx(0.880, abs=0.002)


def test_a_sweep_over_all_heads_replays_to_the_reference(sentiment):
    model, task = sentiment
    some = task.subset(range(0, len(task), 30))
    masks = [(), *([head] for head in anatomy(model).heads)]
    fast, plain = evaluate(model, some, masks), evaluate(model, some, masks, fast=False)
    assert np.array_equal(fast.values[..., 1], plain.values[..., 1])
    assert np.abs(fast.values[..., 2] - plain.values[..., 2]).max() < 1e-5


def test_translations_are_exactly_greedy(translator):
    model, task = translator
    some = task.subset(range(0, len(task), 40))
    masks = [(), *([head] for head in anatomy(model).heads[::5])]
    fast, plain = evaluate(model, some, masks), evaluate(model, some, masks, fast=False)
    differing = int((fast.values != plain.values).any(axis=-1).sum())
    assert differing <= fast.near_ties


def test_cuts_write_what_generate_does(translator):
    model, task = translator
    some, order = task.subset(range(0, len(task), 10)), importance(model, task.subset(range(100))).order()
    for share in (0.0, 0.1, 0.4):
        cut = remove(model, order[: int(share * len(order))])
        fast, plain = evaluate(cut, some), evaluate(cut, some, fast=False)
        assert int((fast.values != plain.values).any(axis=-1).sum()) <= fast.near_ties


def test_relevance_is_conserved_at_full_size(translator):
    """Also where large products are another library's: relevance that is not conserved is refused."""
    model, task = translator
    scores = importance(model, task.subset(range(8)), "relevance")
    assert len(scores.values) == 8
    assert np.isfinite(scores.values).all()
    assert scores.values.any()


def test_bleu_of_the_sums_is_sacrebleus_to_the_last_digit(translator):
    model, task = translator
    some = task.subset(range(100))
    batch = some.batch(range(100))
    with torch.no_grad():
        ids = some.decode(model, batch)
    texts = some.tokenizer.batch_decode(ids, skip_special_tokens=True)
    outcomes = evaluate(model, some, [(), ["cross.5.0"]])
    assert outcomes.score() == sacrebleu.corpus_bleu(texts, [some.targets], force=True).score


def test_most_heads_of_a_real_classifier_can_go_one_by_one(sentiment):
    """M19 section 3.2: few single heads matter."""
    model, task = sentiment
    ablation = ablate_each(model, task.subset(range(0, len(task), 4)))
    assert len(ablation.significant()) < len(ablation.heads) / 4
