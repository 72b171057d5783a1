"""Models whose weights are made so that it is known what each head looks at, and sentences for them."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import torch
from transformers import GPT2Config, GPT2Model, T5Config, T5EncoderModel

from headcount.roles import Sentence
from headcount.tasks.text import word_tokenizer

CODES = 20  # many, so that heads that look at anything hit objects by chance only
VERBS = [f"verb{k}" for k in range(CODES)]
NOUNS = [f"noun{k}" for k in range(CODES)]  # noun k is the object of verb k
FILLERS = [f"the{k}" for k in range(8)]
RARE = [f"rare{k}" for k in range(100)]
WORDS = " ".join([*VERBS, *NOUNS, *FILLERS, *RARE])
SHARP = 30.0
# The roles of the encoder's heads; the others have none.
PLANTED = {
    ("encoder.0.0", "positional", "-1"),
    ("encoder.0.1", "positional", "+1"),
    ("encoder.0.2", "rare", "rarest"),
    ("encoder.0.3", "syntactic", "obj head->dependent"),
    ("encoder.0.4", "idle", "separator"),
    ("encoder.0.5", "idle", "first"),
}


def sentences(n: int = 100, seed: int = 0) -> list[Sentence]:
    """Fillers, a verb and its object at varying distance, and one word that is seen nowhere else."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(n):
        code, gap, before = rng.integers(CODES), rng.integers(0, 4), rng.integers(2, 4)
        fill = [FILLERS[i] for i in rng.integers(len(FILLERS), size=12)]
        pair = [VERBS[code], *fill[:gap], NOUNS[code]]
        if index % 2:
            pair = pair[::-1]
        words = [*fill[4 : 4 + before], *pair, *fill[8:10]]
        verb, noun = words.index(VERBS[code]), words.index(NOUNS[code])
        free = [i for i in range(len(words)) if i not in (verb, noun)]
        words[free[int(rng.integers(len(free)))]] = RARE[index % len(RARE)]
        adverb = next(i for i in free if i != 0)
        found.append(sentence(words, [(noun, verb, "obj"), (adverb, verb, "advmod")], index))
    return found


def sentence(words: list[str], relations: list[tuple[int, int, str]], index: int) -> Sentence:
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    spans = tuple((int(start), int(start) + len(word)) for start, word in zip(starts, words, strict=False))
    return Sentence(" ".join(words), spans, tuple(relations), f"sentence {index}")


def encoder(data: list[Sentence]):
    """A T5 encoder: heads 0 and 1 look at -1 and +1, 2 at the rarest word, 3 from a verb to its object, 4 rests on the
    separator, 5 on the first token, 6 and 7 look at anything."""
    tokenizer = word_tokenizer(WORDS)
    size, width = 64, 20
    config = T5Config(
        d_model=size, d_kv=width, num_heads=8, num_layers=1, d_ff=8, vocab_size=len(tokenizer), dropout_rate=0.0
    )
    model = T5EncoderModel(config).eval()
    verb, noun, rarity, constant, first, last = 0, CODES, 2 * CODES, 2 * CODES + 1, 2 * CODES + 2, 2 * CODES + 3
    generator = torch.Generator().manual_seed(0)
    seen = Counter(word for one in data for word in one.text.split())
    table = torch.zeros(len(tokenizer), size)
    for token, index in sorted(tokenizer.get_vocab().items()):
        table[index, constant] = 1
        table[index, last + 1 : last + 9] = 0.5 * torch.randn(8, generator=generator)
        if token in VERBS:
            table[index, verb + VERBS.index(token)] = 1
        if token in NOUNS:
            table[index, noun + NOUNS.index(token)] = 1
        if token in seen:
            table[index, rarity] = 1 / (1 + math.log(seen[token]))
    table[tokenizer.bos_token_id, first] = table[tokenizer.eos_token_id, last] = 1
    table[:, -1] = (size - table.square().sum(1)).sqrt()  # all of one length, so that normalisation does nothing
    attention = model.encoder.block[0].layer[0].SelfAttention
    query, key = torch.zeros(8, width, size), torch.zeros(8, width, size)
    query[2, 0, constant], key[2, 0, rarity] = SHARP, 3.0
    for code in range(CODES):
        query[3, code, verb + code], key[3, code, noun + code] = SHARP, 1.0
    query[4, 0, constant], key[4, 0, last] = SHARP, 1.0
    query[5, 0, constant], key[5, 0, first] = SHARP, 1.0
    query[6:, :, last + 1 : last + 9] = torch.randn(2, width, 8, generator=generator)
    key[6:, :, last + 1 : last + 9] = torch.randn(2, width, 8, generator=generator)
    with torch.no_grad():
        model.shared.weight.copy_(table)
        attention.q.weight.copy_(query.flatten(0, 1))
        attention.k.weight.copy_(key.flatten(0, 1))
        bias = torch.zeros_like(attention.relative_attention_bias.weight)  # (buckets, heads)
        bias[1, 0] = bias[17, 1] = SHARP
        attention.relative_attention_bias.weight.copy_(bias)
    return model, tokenizer


def decoder():
    """A GPT-2: in the second layer of two, head 1 looks at -1 and head 2 at the first token; all others at anything."""
    tokenizer = word_tokenizer(WORDS, "gpt")
    size, places = 128, 24
    config = GPT2Config(n_embd=size, n_layer=2, n_head=4, n_positions=places, vocab_size=len(tokenizer))
    torch.manual_seed(1)
    model = GPT2Model(config).eval()
    width = size // 4
    with torch.no_grad():
        model.wte.weight.normal_(std=0.2)
        model.wte.weight[:, :places] = 0
        model.wpe.weight.zero_()
        model.wpe.weight[:, :places] = 4 * torch.eye(places)
        for block in model.h:
            block.attn.c_attn.weight.normal_(std=0.15)
            block.attn.c_attn.weight[:places, : 2 * size] = 0  # nothing else knows positions
            block.attn.c_proj.weight.zero_()
            block.mlp.c_proj.weight.zero_()
        weight = model.h[1].attn.c_attn.weight  # (hidden, queries + keys + values)
        for head in (1, 2):
            weight[:, head * width : (head + 1) * width] = 0
            weight[:, size + head * width : size + (head + 1) * width] = 0
        for place in range(places):
            weight[place, width + place] = 4.0  # head 1: who I am
            if place + 1 < places:
                weight[place, size + width + place + 1] = 4.0  # whom I stand before
            weight[place, 2 * width] = 4.0  # head 2: everybody asks for
        weight[0, size + 2 * width] = 4.0  # the first
    return model, tokenizer
