"""Real weights and data: what the pruning benchmark rests on, on fewer examples."""

import pytest
import torch
from transformers import AutoTokenizer

from headcount import evaluate, load, load_task, prune
from headcount.pruning import Pruning
from headcount.pruning.search import CutSearch
from headcount.structure import anatomy

pytestmark = pytest.mark.slow


def sentiment(shared):
    directory = shared / "models/minilm-sst2"
    model, tokenizer = load(directory, dtype=torch.float32), AutoTokenizer.from_pretrained(directory)
    train = load_task(None, shared / "data/sst2/train.tsv", tokenizer, model, limit=384)
    dev = load_task(None, shared / "data/sst2/dev.tsv", tokenizer, model)
    return model, train, dev


def translator(shared):
    directory = shared / "models/multi30k-en-fr"
    model, tokenizer = load(directory, dtype=torch.float32), AutoTokenizer.from_pretrained(directory)
    data = shared / "data/multi30k"
    return model, *(
        load_task(None, data / f"{name}.en", tokenizer, model, target_data=data / f"{name}.fr", limit=limit)
        for name, limit in (("train", 384), ("val", 200))
    )


def at(model, score, data, share, **settings):
    """The metric with this share of the heads removed."""
    total = len(anatomy(model).heads)
    numbers = [round(total * part / 10) for part in range(1, round(10 * share) + 1)]
    *_, cut = CutSearch(model, score, Pruning(heads=max(numbers), **settings)).cuts(numbers)
    return evaluate(cut.model, data).score()


def test_refit_helps_a_classifier(shared):
    model, train, dev = sentiment(shared)
    plain = at(model, train, dev, 0.8, method="michel", compensation="none")
    assert at(model, train, dev, 0.8, method="michel", compensation="refit") > plain + 0.02


def test_the_default_is_far_ahead_on_a_translator(shared):
    model, train, val = translator(shared)
    michel = at(model, train, val, 0.7, method="michel", compensation="none")
    assert at(model, train, val, 0.7, method="search", compensation="refit") > michel + 10


def test_a_translator_pruned_within_a_budget(shared):
    model, train, val = translator(shared)
    pruned = prune(model, train, val, max_drop=3.0, confidence=0.5)  # by the measured drop
    assert len(pruned.removed) >= 0.2 * len(anatomy(model).heads)
    assert pruned.after > pruned.before - 8
