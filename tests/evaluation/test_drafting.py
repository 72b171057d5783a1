"""Drafted decoding writes exactly what greedy decoding writes, under every mask."""

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

import zoo
from headcount import Translation, anatomy, evaluate
from headcount.evaluation.drafting import tokens_needed
from headcount.evaluation.verification import Verifier, best_candidate
from headcount.tasks.toy import word_tokenizer

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


def outputs_under(model, task, masks, **settings):
    """The token ids written under each mask, recorded through the task's statistics."""
    written = []
    original = task.scorer.statistics

    def statistics(tokenizer, ids, targets, pad):
        written.extend(tuple(row) for row in ids.tolist())
        return original(tokenizer, ids, targets, pad)

    task.scorer.statistics = statistics
    outcomes = evaluate(model, task, masks, **settings)
    task.scorer.statistics = original
    return outcomes, written


@pytest.mark.parametrize("name", TRANSLATORS)
def test_drafted_decoding_is_exactly_greedy(name):
    model = translator(name)
    task = translation(model, metric="chrf")
    masks = [(), *((head,) for head in anatomy(model).heads[::2]), anatomy(model).sites[-1].heads]
    fast = evaluate(model, task, masks, tokens=40, stacked=200)
    plain = evaluate(model, task, masks, fast=False)
    assert np.array_equal(fast.values, plain.values)
    assert (plain.values[1:] != plain.values[:1]).any(axis=(1, 2)).mean() > 0.3  # masks change translations


def test_processors_of_the_generation_config_are_respected():
    model = translator("marian")
    model.generation_config = GenerationConfig.from_dict(
        {**model.generation_config.to_dict(), "no_repeat_ngram_size": 2, "bad_words_ids": [[7], [9]], "min_length": 4}
    )
    task = translation(model, metric="chrf")
    masks = [(), *((head,) for head in anatomy(model).heads[::3])]
    fast, plain = evaluate(model, task, masks), evaluate(model, task, masks, fast=False)
    assert np.array_equal(fast.values, plain.values)
    free = translator("marian")
    assert not np.array_equal(evaluate(free, task, [()]).values, plain.values[:1])  # the settings matter


def test_beams_take_the_plain_path_and_mean_fill_is_exact():
    model = translator("marian")
    task = translation(model, beams=3, metric="chrf")
    masks = [(), (anatomy(model).heads[0],)]
    assert np.array_equal(evaluate(model, task, masks).values, evaluate(model, task, masks, fast=False).values)
    from headcount.evaluation.means import mean_contexts

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
    draft = task.decode(model, batch)
    needed = tokens_needed(draft, torch.tensor(task.limits(model, batch.indices)), torch.tensor([2]))
    with torch.inference_mode():
        certified = Verifier(model, task, draft, needed)
        certified(batch)
        everything = Verifier(model, task, draft, needed)
        everything(batch)
        everything.margin = torch.zeros_like(everything.margin)  # nothing is certain: look everywhere
        skipped = 0
        from headcount import masked

        for head in anatomy(model).heads[::3]:
            with masked(model, xi={head: 0.7}):
                looked, all_looked = certified(batch), everything(batch)
            assert torch.equal(looked.chosen, all_looked.chosen)
        with masked(model, xi={anatomy(model).heads[0]: 0.999999}):
            rows = []
            hook = model.get_output_embeddings().register_forward_hook(lambda m, a, out: rows.append(out.shape[1]))
            certified(batch)
            hook.remove()
            skipped = int(needed.sum()) - rows[0]
    assert skipped > 0  # the certificate is not empty


def test_best_candidate_and_near_ties():
    logits = torch.tensor([[0.0, 1.0, 1.00005], [3.0, 1.0, 2.0]])
    best, tied = best_candidate(logits)
    assert best.tolist() == [2, 0]
    assert tied.tolist() == [True, False]
