"""Models whose weights are made so that it is known what each head looks at, and sentences for them."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from scipy.io import wavfile
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from every_task import listener
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


# The roles of the heads of `language_model`; the others have none.
PLANTED_IN_LANGUAGE = {
    ("decoder.0.0", "previous token"),
    ("decoder.0.0", "streaming"),
    ("decoder.0.1", "duplicate token"),
    ("decoder.0.2", "sink"),
    ("decoder.0.2", "streaming"),
    ("decoder.1.0", "induction"),
    ("decoder.1.0", "retrieval"),
    ("decoder.1.0", "copying"),
    ("decoder.1.1", "copying"),
}
VOCABULARY = " ".join(f"word{k}" for k in range(44))


def language_model():
    """A GPT-2 whose hidden states are three stretches: which token, where, and which token stands before.

    Layer 0: head 0 looks at the token before and notes it, 1 at the last occurrence, 2 at the first token, 3 at any.
    Layer 1: head 0 looks where the token before is the same as this one, and copies what it finds; 1 looks at anything
    and copies it, 2 does nothing, 3 writes the opposite.
    """
    tokenizer = word_tokenizer(VOCABULARY, "gpt")
    heads, width, places = 4, 64, 64
    token, place, before = 0, width, 2 * width
    size = heads * width
    config = GPT2Config(n_embd=size, n_layer=2, n_head=heads, n_positions=places, vocab_size=len(tokenizer))
    model = GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(0)

    def stretch(part: str, head: int) -> slice:
        start = "qkv".index(part) * size + head * width
        return slice(start, start + width)

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.zero_()
        model.transformer.wte.weight[:, :width] = torch.eye(len(tokenizer), width)
        model.transformer.wpe.weight[:, place : place + width] = torch.eye(places)
        one = math.sqrt(size / 2)  # what an entry becomes in the first norm: two of all entries are 1
        known, here = torch.eye(width) / one, slice(token, token + width)
        for layer, block in enumerate(model.transformer.h):
            weight, bias = block.attn.c_attn.weight, block.attn.c_attn.bias  # (hidden, queries + keys + values)
            output = block.attn.c_proj.weight  # (heads, hidden)
            if layer == 0:
                at = slice(place, place + width)
                weight[at, stretch("q", 0)] = 40 * torch.eye(width) / one
                weight[at, stretch("k", 0)] = 8 * torch.eye(width).roll(1, dims=1) / one
                weight[here, stretch("v", 0)] = known
                output[:width, before : before + width] = torch.eye(width)
                weight[here, stretch("q", 1)], weight[here, stretch("k", 1)] = 40 * known, 8 * known
                last = width - 1  # of several occurrences, the earlier
                bias[stretch("q", 1)][last] = 8.0
                weight[at, stretch("k", 1)][:, last] = -0.3 * torch.arange(places) / one
                bias[stretch("q", 2)][0] = 8.0
                weight[place, stretch("k", 2)][0] = SHARP / one
                weight[here, stretch("q", 3)] = torch.randn(width, width, generator=generator) / one
                weight[here, stretch("k", 3)] = torch.randn(width, width, generator=generator) / one
            else:
                weight[here, stretch("q", 0)] = 60 * known
                weight[before : before + width, stretch("k", 0)] = 8 * known
                for head, sign in ((0, 1.0), (1, 1.0), (3, -1.0)):
                    weight[here, stretch("v", head)] = known
                    output[head * width : (head + 1) * width, here] = sign * torch.eye(width)
    return model, tokenizer


def grouped_copiers():
    """A Llama of four heads, two to a key-value head, that look at anything: 0 and 2 copy, 1 and 3 do not.

    Key-value head 0 holds tokens as they are: head 0 writes them, 1 the opposite. Key-value head 1 holds each token as
    the next one of the vocabulary: head 2 undoes this, 3 does not.
    """
    tokenizer = word_tokenizer(VOCABULARY, "gpt")
    size = 64
    config = LlamaConfig(
        hidden_size=size, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=size,
        intermediate_size=8, vocab_size=len(tokenizer), max_position_embeddings=64,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    same = torch.eye(size)
    shifted = same.roll(1, dims=0)
    with torch.no_grad():
        layer = model.model.layers[0]
        for weight in (layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight, layer.mlp.down_proj.weight):
            weight.zero_()
        for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
            weight.copy_(torch.eye(len(tokenizer), size))
        layer.self_attn.v_proj.weight.copy_(torch.cat([same, shifted]))
        layer.self_attn.o_proj.weight.copy_(torch.cat([same, -same, shifted.T, same], dim=1))
    return model, tokenizer


def aligner():
    """A Whisper that hears a second, 50 frames, and writes a blank and five letters in the first half of it.

    Its cross-attention: head 0 looks where a letter is spoken if all take the same time, 1 always at frame 10, 2 ten
    frames after the letter, 3 at anything.
    """
    processor = listener()[1]
    heads, width = 4, 64
    size, places = heads * width, 40
    config = WhisperConfig(
        vocab_size=len(processor.tokenizer), num_mel_bins=8, d_model=size, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=8, decoder_ffn_dim=8,
        max_source_positions=50, max_target_positions=places, pad_token_id=0, bos_token_id=0, eos_token_id=0,
        decoder_start_token_id=processor.tokenizer.prefix_tokens[0], suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" not in name:
                parameter.zero_()
        model.model.encoder.embed_positions.weight.copy_(torch.eye(50, size))
        model.model.decoder.embed_positions.weight.copy_(torch.eye(places, size))
        cross = model.model.decoder.layers[0].encoder_attn
        first = len(processor.tokenizer.prefix_tokens)  # what predicts the first letter has read the blank
        for head, late in ((0, 0), (2, 10)):
            rows = slice(head * width, head * width + 50)
            cross.k_proj.weight[rows] = torch.eye(50, size)
            for letter in range(5):
                start = head * width + 5 * letter + late
                cross.q_proj.weight[start : start + 5, first + letter] = 4.0
        cross.q_proj.bias[width], cross.k_proj.weight[width, 10] = 30.0, 1.0
    return model, processor


def spoken_letters(folder: Path, n: int = 20) -> Path:
    """Recordings of half a second, with five letters each."""
    rng = np.random.default_rng(0)
    lines = ["file\ttext"]
    for number in range(n):
        sound = np.sin(np.arange(8000) * rng.uniform(0.05, 0.5)) + 0.1 * rng.standard_normal(8000)
        wavfile.write(folder / f"{number}.wav", 16000, (8000 * sound).astype(np.int16))
        lines.append(f"{number}.wav\t{''.join(rng.choice(list('abcdefgh'), 5))}")
    path = folder / "transcripts.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


def translator():
    """A T5 that reads and writes ten words, and pairs of sentences with the same five words, in order in the target.

    Its cross-attention: head 0 looks at the word that was read, 1 at the word that follows it in the target and is to
    be written, 2 at `word0` if it is there, 3 at anything.
    """
    tokenizer = word_tokenizer(" ".join(f"word{k}" for k in range(10)), "marian")
    heads, size = 4, 32
    config = T5Config(
        vocab_size=len(tokenizer), d_model=size, d_kv=size, d_ff=4, num_layers=1, num_decoder_layers=1, num_heads=heads,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).eval()
    first = tokenizer.convert_tokens_to_ids("word0")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" not in name:
                parameter.zero_()
        model.shared.weight.copy_(torch.eye(len(tokenizer), size))
        cross = model.decoder.block[0].layer[1].EncDecAttention
        same = torch.eye(size)
        cross.q.weight.copy_(torch.cat([same, same.roll(1, dims=0), torch.ones(size, size), 0 * same]))
        cross.k.weight.copy_(torch.cat([same, same, 0 * same, 0 * same]))
        cross.k.weight[2 * size + first, first] = 1.0
    rng, rows = np.random.default_rng(0), []
    for _ in range(40):
        start, order = int(rng.integers(0, 6)), rng.permutation(5)
        source, target = ([f"word{start + k}" for k in some] for some in (order, range(5)))
        links = " ".join(f"{place}-{word}" for place, word in enumerate(order))
        rows.append({"source": " ".join(source), "target": " ".join(target), "alignment": links})
    return model, tokenizer, rows
