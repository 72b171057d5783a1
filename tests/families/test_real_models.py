"""The central test once more, on trained weights: a classifier and a translator."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer

from headcount import anatomy, load, masked, remove, save
from oracle import off_by, run

TEXTS = ["A man in a blue shirt is standing on a ladder.", "Two dogs play.", "a film that is, after all, worth seeing"]


def heads_to_remove(model):
    """A third of the heads, and two whole sites: the first decoder layer where there is one."""
    sites = anatomy(model).sites
    first = next((site for site in sites if site.kind == "decoder"), sites[0])
    emptied = {first.name, sites[-1].name}
    return [head for n, head in enumerate(anatomy(model).heads) if n % 3 == 0 or head.site in emptied]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["minilm-sst2", "multi30k-en-fr"])
def test_masked_and_removed_agree_on_trained_weights(shared, name, tmp_path):
    source = shared / "models" / name
    model = load(source, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source)
    batch = {**tokenizer(TEXTS, padding=True, return_tensors="pt")}
    wanted = {key: batch[key] for key in ("input_ids", "attention_mask")}
    if model.can_generate():
        wanted["decoder_input_ids"] = wanted["input_ids"][:, :5]
    whole = run(model, wanted)
    assert torch.equal(whole, run(type(model).from_pretrained(source, dtype=torch.float32).eval(), wanted))
    heads = heads_to_remove(model)
    smaller = remove(model, heads)
    again = load(save(smaller, tmp_path / name), dtype=torch.float32)
    with masked(model, off=heads):
        expected = run(model, wanted)
        texts = written(model, wanted)
    assert off_by(expected, whole) > 1e-3
    assert off_by(run(smaller, wanted), expected) <= 1e-5
    assert torch.equal(run(again, wanted), run(smaller, wanted))
    assert torch.equal(written(again, wanted), texts)
    assert (tmp_path / name / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def written(model, batch):
    if not model.can_generate():
        return torch.zeros(1)
    settings = {"num_beams": 3, "max_new_tokens": 12, "do_sample": False}
    return model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], **settings)
