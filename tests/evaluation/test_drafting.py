"""Drafted decoding writes exactly what greedy decoding writes, under every mask."""

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

import zoo
from every_task import every_task
from headcount import Translation, anatomy, evaluate, load_task, masked, remove
from headcount.cli.model_loading import load_model
from headcount.evaluation import mean_contexts
from headcount.evaluation.decoding import best_candidate
from headcount.evaluation.drafting import Reference, make_draft, refer, verify
from headcount.tasks import Batch, Metric, padded
from headcount.tasks.text import word_tokenizer

WORDS = " ".join(f"w{number}" for number in range(40))
TRANSLATORS = ["marian", "bart", "mbart", "m2m100", "pegasus", "t5", "mt5"]


def translation(model, beams=1, metric="bleu", count=7):
    """Random sentences of different lengths; a metric that changes whenever an output does."""
    generator = torch.Generator().manual_seed(0)
    texts = []
    for _ in range(count):
        length = int(torch.randint(2, 9, (1,), generator=generator))
        texts.append(" ".join(f"w{int(word)}" for word in torch.randint(0, 40, (length,), generator=generator)))
    rows = [{"source": text, "target": text} for text in texts]
    tokenizer = word_tokenizer(WORDS, "marian")
    return Translation(rows, tokenizer, source="source", target="target", beams=beams, metric=metric, max_new_tokens=12)


def translator(name, seed=0):
    """A zoo translator whose special tokens are the word tokenizer's."""
    model = zoo.build_generator(name, seed=seed)
    tokenizer = word_tokenizer(WORDS, "marian")
    for config in (model.config, model.generation_config):
        config.pad_token_id, config.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    return model


@pytest.mark.parametrize("name", TRANSLATORS)
def test_drafted_decoding_is_exactly_greedy(name):
    model = translator(name)
    task = translation(model, metric="chrf")
    masks = [(), *((head,) for head in anatomy(model).heads[::2]), anatomy(model).sites[-1].heads]
    fast = evaluate(model, task, masks, tokens=40, stacked=200)
    plain = evaluate(model, task, masks, fast=False)
    assert np.array_equal(fast.values, plain.values)
    assert (plain.values[1:] != plain.values[:1]).any(axis=(1, 2)).mean() > 0.3  # masks change translations


@pytest.mark.parametrize("name", TRANSLATORS)
def test_pruned_copies_write_what_generate_does(name):
    """Also where the first decoder layer attends to nothing, or not to the source, and with neurons off."""
    model = translator(name)
    task = translation(model, metric="chrf", count=20)
    whole, found = evaluate(model, task, fast=False).values, anatomy(model)
    changed = []
    for removed in (found.heads[::3], found.site("decoder.0").heads, found.site("cross.1").heads):
        smaller = remove(model, removed)
        masks = [(), ("decoder_ffn.0.0-9",), ("cross.0.1", "encoder_ffn.1.3")]
        fast, plain = (evaluate(smaller, task, masks, tokens=60, fast=fast) for fast in (True, False))
        assert np.array_equal(fast.values, plain.values)
        changed.append(not np.array_equal(plain.values[:1], whole))
    assert any(changed)


def test_whisper_writes_what_generate_does(tmp_path):
    directory, data = every_task("speech", tmp_path)
    model, processor = load_model(str(directory))
    task = load_task(None, data, processor, model)
    smaller = remove(model, anatomy(model).heads[::3])
    for one in (model, smaller):
        fast, plain = evaluate(one, task), evaluate(one, task, fast=False)
        assert np.array_equal(fast.values, plain.values)


def test_processors_of_the_generation_config_are_respected():
    model = translator("marian")
    model.generation_config = GenerationConfig.from_dict(
        {**model.generation_config.to_dict(), "no_repeat_ngram_size": 2, "bad_words_ids": [[7], [9]], "min_length": 4}
    )
    task = translation(model, metric="chrf")
    masks = [(), *((head,) for head in anatomy(model).heads[::3]), anatomy(model).heads[::4]]
    fast, plain = evaluate(model, task, masks), evaluate(model, task, masks, fast=False)
    assert np.array_equal(fast.values, plain.values)
    free = translator("marian")
    assert not np.array_equal(evaluate(free, task, [()]).values, plain.values[:1])  # the settings matter


def test_beams_take_the_plain_path_and_mean_fill_is_exact():
    model = translator("marian")
    task = translation(model, beams=3, metric="chrf")
    masks = [(), (anatomy(model).heads[0],)]
    assert np.array_equal(evaluate(model, task, masks).values, evaluate(model, task, masks, fast=False).values)
    task = translation(model, metric="chrf")
    fill, masks = mean_contexts(model, task), [(), *((head,) for head in anatomy(model).heads[::3])]
    fast, plain = (evaluate(model, task, masks, fill=fill, fast=fast) for fast in (True, False))
    assert np.array_equal(fast.values, plain.values)


def test_teacher_forced_translation_replays():
    model = translator("t5")
    task = translation(model, metric="perplexity")
    masks = [(), *((head,) for head in anatomy(model).heads)]
    fast, plain = evaluate(model, task, masks), evaluate(model, task, masks, fast=False)
    assert np.abs(fast.values - plain.values).max() < 1e-4  # sums of the losses of up to nine tokens
    assert np.array_equal(fast.values[..., :2], plain.values[..., :2])


def test_margins_certify_only_what_cannot_change():
    """No position that is left out of the vocabulary projection may have changed its choice."""
    model = translator("marian")
    task = translation(model)
    batch = task.batch(range(len(task)))
    with torch.inference_mode():
        draft = make_draft(model, task, batch)
        certain = refer(model, task, batch, draft)
        nothing_is = Reference(certain.hidden, torch.zeros_like(certain.margin), certain.reach)  # look everywhere
        for head in anatomy(model).heads[::3]:
            with masked(model, xi={head: 0.7}):
                some, everything = (verify(model, task, batch, draft, known) for known in (certain, nothing_is))
            assert torch.equal(some.chosen, everything.chosen)
        rows = []
        hook = model.get_output_embeddings().register_forward_hook(lambda m, a, out: rows.append(out.shape[1]))
        with masked(model, xi={anatomy(model).heads[0]: 0.999999}):
            verify(model, task, batch, draft, certain)
        hook.remove()
    assert rows[0] < int(draft.needed.sum())  # the certificate is not empty


def test_near_ties_of_what_is_written_are_counted():
    model = translator("marian")
    model.get_output_embeddings().weight.data.zero_()  # all tokens equally good, but for their bias
    task = translation(model, count=3)
    assert evaluate(model, task).near_ties >= len(task)


def test_best_candidate_and_near_ties():
    logits = torch.tensor([[0.0, 1.0, 1.00005], [3.0, 1.0, 2.0]])
    best, tied = best_candidate(logits)
    assert best.tolist() == [2, 0]
    assert tied.tolist() == [True, False]


class Own:
    """A generating task as a user might write it: what the protocol asks for, and nothing else."""

    generates = True
    metric = Metric("tokens", lambda sums: sums[..., 0])

    def __init__(self, sources):
        self.sources = sources
        self.lengths = [len(ids) for ids in sources]

    def __len__(self):
        return len(self.sources)

    def batch(self, indices):
        ids = padded([self.sources[index] for index in indices], 0)
        return Batch({"input_ids": ids, "attention_mask": (ids != 0).long()}, None, tuple(indices))

    def decode(self, model, batch):
        mask = batch.inputs["attention_mask"]
        ids = model.generate(batch.inputs["input_ids"], attention_mask=mask, max_new_tokens=6, do_sample=False)
        return ids[:, 1:]

    def statistics(self, outputs, batch):
        weights = torch.arange(1.0, outputs.shape[1] + 1, dtype=torch.float64)
        return (outputs.double() * weights).sum(dim=1, keepdim=True)

    def check(self, model):
        return []

    def signature(self):
        return {"own": self.sources}

    def subset(self, indices):
        return type(self)([self.sources[index] for index in indices])


class OwnDrafting(Own):
    """The same, in a form that lets its outputs be drafted."""

    drafts = True
    pad = 0

    def limits(self, model, indices):
        return [6] * len(indices)


@pytest.mark.parametrize("kind", [Own, OwnDrafting])
def test_a_generating_task_of_a_users_own(kind, monkeypatch, tmp_path):
    model = translator("marian")
    model.generation_config.pad_token_id = 0
    task = kind([[5, 6, 7, 2], [9, 2], [11, 5, 2], [8, 7, 6, 5, 2], [20, 21, 22, 2]])
    heads = anatomy(model).heads
    masks = [(), *((head,) for head in heads[::2]), (heads[0], heads[-1]), heads[::3]]
    plain = evaluate(model, task, masks, fast=False)
    decoded = []
    decode = kind.decode
    monkeypatch.setattr(kind, "decode", lambda self, model, batch: decoded.append(model) or decode(self, model, batch))
    fast = evaluate(model, task, masks, run=tmp_path)
    assert np.array_equal(fast.values, plain.values)
    assert len(set(fast.scores().tolist())) > 4  # the masks change outputs
    whole_model = sum(one is model for one in decoded)
    assert whole_model == (0 if kind is OwnDrafting else len(masks) - 2)


def test_processors_that_depend_on_the_source_take_the_plain_path():
    model = translator("marian")
    model.generation_config.encoder_no_repeat_ngram_size = 2
    task = translation(model, metric="chrf")
    masks = [(), *((head,) for head in anatomy(model).heads[::5])]
    fast, plain = evaluate(model, task, masks), evaluate(model, task, masks, fast=False)
    assert np.array_equal(fast.values, plain.values)
