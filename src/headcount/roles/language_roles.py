"""What heads of language models do, measured on random tokens: no data is needed.

A probe is a random sequence of known structure. In a *repeated* probe a block of distinct tokens comes twice, so that
looking back one block predicts the second. In a *needle* probe a few tokens from somewhere in a long context come once
more at its end. Random tokens have no meaning: nothing but position and repetition guides a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from headcount.engine import Arrays, Progress, batches_by_length, is_finite
from headcount.errors import HeadcountError
from headcount.evaluation import head_parts
from headcount.heads import Head
from headcount.roles.attention import AttentionView, EncodedSentences, special_ids
from headcount.roles.sentence_roles import Counted
from headcount.roles.sentences import Sentence, Tokens
from headcount.scoring import frozen
from headcount.structure import (
    AttentionSite,
    Substitutes,
    anatomy,
    device_of,
    embedding_rows,
    position_limit,
    without_cache,
)
from headcount.tasks import length_limit

BLOCK, REPEATED = 50, 32  # tokens of a block; probes in which a block comes twice
NEEDLE, NEEDLES = 8, 12  # tokens of a needle; probes of each length
CONTEXT, LENGTHS = 512, 3  # the longest context; each length is twice the one before
SINKS = 4  # initial tokens (Xiao et al. 2024)
LEAST_TOKENS = 16  # with fewer positions, or fewer kinds of tokens, there is nothing to find


@dataclass(frozen=True)
class Probe(Sentence):
    """What a random sequence is made of; positions are counted in tokens.

    start: the first random token, after whatever the tokenizer begins a text with. period: of a repeated probe, the
    size of a block. needle, asked: of a needle probe, where the needle starts, and where it comes again. recent: how
    many of the last tokens a head is left with if its cache is cut.
    """

    start: int = 0
    period: int = 0
    needle: int = 0
    asked: int = 0
    recent: int = 0


def make_probes(model: Any, tokenizer: Any, seed: int = 0, max_length: int | None = None) -> EncodedSentences:
    """Random sequences of a tokenizer's ordinary tokens that the model can read.

    >>> from headcount.tasks.text import word_tokenizer
    >>> from transformers import GPT2Config, GPT2Model
    >>> tokenizer = word_tokenizer(" ".join(f"w{i}" for i in range(80)))
    >>> model = GPT2Model(GPT2Config(n_layer=1, n_head=2, n_embd=4, vocab_size=len(tokenizer), n_positions=128))
    >>> probes = make_probes(model, tokenizer)
    >>> sorted(set(probes.lengths))
    [32, 64, 101, 128]

    max_length: of the longest context.
    """
    ordinary = ordinary_tokens(model, tokenizer)
    limits = [length_limit(tokenizer, None), position_limit(model), max_length]
    longest = min([CONTEXT if max_length is None else max_length, *(n for n in limits if n is not None)])
    if longest < LEAST_TOKENS or len(ordinary) < LEAST_TOKENS:
        raise HeadcountError(
            f"the model reads {longest} tokens, of {len(ordinary)} kinds; probes for roles need at least {LEAST_TOKENS}"
        )
    generator = np.random.default_rng(seed)
    first = first_tokens(tokenizer)
    made = [_repeated(generator, ordinary, first, longest) for _ in range(REPEATED)]
    for length in sorted(longest // 2**k for k in range(LENGTHS) if longest // 2**k >= LEAST_TOKENS):
        made += [_with_needle(generator, ordinary, first, length) for _ in range(NEEDLES)]
    special = list(special_ids(tokenizer))
    probes, tokens = zip(*((probe, Tokens(ids, ~np.isin(ids, special))) for probe, ids in made), strict=True)
    return EncodedSentences(probes, tokens)


def refuse_non_decoder(model: Any) -> None:
    """Refuse a model that does not predict text from the text before it."""
    sites = anatomy(model).sites
    if model.config.is_encoder_decoder or any(site.kind != "decoder" for site in sites):
        kinds = " and ".join(dict.fromkeys(site.kind for site in sites))
        raise HeadcountError(
            f"{type(model).__name__} has {kinds} attention; roles without data are those of a language model's decoder",
            advice="pass {data}",
        )


def ordinary_tokens(model: Any, tokenizer: Any) -> np.ndarray:
    """The ids of tokens that are words or pieces of words; of all that are not special if those are few."""
    rows, marks = embedding_rows(model), special_ids(tokenizer) | set(getattr(tokenizer, "added_tokens_decoder", ()))
    marks |= {tokenizer.unk_token_id, tokenizer.mask_token_id}
    known = len(tokenizer) if rows is None else min(rows, len(tokenizer))
    plain = [token for token in range(known) if token not in marks]
    written = tokenizer.convert_ids_to_tokens(plain)
    words = [token for token, text in zip(plain, written, strict=True) if text and text.lstrip("Ġ▁#").isalpha()]
    return np.array(words if len(words) > 4 * BLOCK else plain)


def first_tokens(tokenizer: Any) -> list[int]:
    """What the tokenizer begins every text with: often a mark of the beginning, often nothing."""
    special = special_ids(tokenizer)
    return list(takewhile(special.__contains__, tokenizer("a")["input_ids"]))


def _repeated(
    generator: np.random.Generator, ordinary: np.ndarray, first: list[int], longest: int
) -> tuple[Probe, np.ndarray]:
    size = min(BLOCK, (longest - len(first)) // 2, len(ordinary))
    block = generator.choice(ordinary, size, replace=False)
    return Probe("", place="a repeated probe", start=len(first), period=size), np.array([*first, *block, *block])


def _with_needle(
    generator: np.random.Generator, ordinary: np.ndarray, first: list[int], length: int
) -> tuple[Probe, np.ndarray]:
    """The needle is among the tokens that a cache of the first and the recent ones would have lost."""
    needle, recent = min(NEEDLE, length // 8 + 1), length // 8
    asked = length - needle
    tokens = generator.choice(ordinary, needle, replace=False)
    others = ordinary[~np.isin(ordinary, tokens)]
    ids = np.array([*first, *generator.choice(others, length - len(first))])  # (length,)
    place = int(generator.integers(max(len(first), SINKS), asked - recent - needle + 1))
    ids[place : place + needle] = ids[asked:] = tokens
    return Probe("", place="a needle probe", start=len(first), needle=place, asked=asked, recent=recent), ids


# ----------------------------------------------------------------------------------------------------------- attention


@dataclass(frozen=True)
class ProbeMeasure:
    """A role of heads of language models: its score is a mean weight, or how often a weight is the largest."""

    threshold: float
    name: ClassVar[str]
    details: ClassVar[tuple[str, ...]]
    paper: ClassVar[str]

    def holds(self, score: float, baseline: float, detail: str) -> bool:
        return score >= max(self.threshold, baseline)

    def count(self, view: AttentionView) -> Counted | None:
        probe = view.sentence
        found = self.cases(view, probe) if isinstance(probe, Probe) else None
        if found is None:
            return None
        hits, baseline = found
        return Counted(hits.sum(-1)[:, None], np.array([hits.shape[-1]]), np.array([baseline.sum()]))

    def cases(self, view: AttentionView, probe: Probe) -> tuple[np.ndarray, np.ndarray] | None:
        """Hits (heads, cases) and the baseline's (cases,); None if a probe of this kind has no cases."""
        return None


class LookBack(ProbeMeasure):
    """The mean weight on one earlier token of a repeated probe; the baseline is uniform attention."""

    back: ClassVar[tuple[int, int]]  # how far back it is: in tokens, and in blocks

    def cases(self, view: AttentionView, probe: Probe) -> tuple[np.ndarray, np.ndarray] | None:
        if not probe.period:
            return None
        tokens, blocks = self.back
        back = tokens + blocks * probe.period
        query = np.arange(probe.start + max(back, blocks * probe.period), len(view.keys.ids))
        return view.weights[:, query, query - back], 1 / (query + 1)


class Induction(LookBack):
    """To the token after the last occurrence of this one, which predicts that it comes again."""

    name, details, paper = "induction", ("after the last occurrence",), "Olsson et al. 2022"
    back = (-1, 1)


class PreviousToken(LookBack):
    """To the token before."""

    name, details, paper = "previous token", ("-1",), "Elhage et al. 2021"
    back = (1, 0)


class DuplicateToken(LookBack):
    """To the last occurrence of the same token."""

    name, details, paper = "duplicate token", ("the last occurrence",), "Wang et al. 2023"
    back = (0, 1)


class Sink(ProbeMeasure):
    """The mean weight of tokens far from the beginning on the initial tokens; the baseline is uniform attention."""

    name, details, paper = "sink", (f"the first {SINKS} tokens",), "Xiao et al. 2024"

    def cases(self, view: AttentionView, probe: Probe) -> tuple[np.ndarray, np.ndarray] | None:
        if not probe.period:
            return None
        query = np.arange(2 * SINKS, len(view.keys.ids))
        return view.weights[:, query, :SINKS].sum(-1), SINKS / (query + 1)


class Retrieval(ProbeMeasure):
    """How often the largest weight is on the needle's next token, while the needle is written again.

    The baseline is a head that picks a token at random. The needle is given, not generated as in the paper, so that
    heads are found also in models that fail to write it.
    """

    name, details, paper = "retrieval", ("the needle's next token",), "Wu et al. 2024"

    def cases(self, view: AttentionView, probe: Probe) -> tuple[np.ndarray, np.ndarray] | None:
        if not probe.needle:
            return None
        query = np.arange(probe.asked, len(view.keys.ids) - 1)
        strongest = view.weights[:, query].argmax(-1)  # (heads, cases)
        return strongest == probe.needle + 1 + query - probe.asked, 1 / (query + 1)


class Streaming(ProbeMeasure):
    """The mean weight on the initial and the recent tokens, while a needle between them is wanted.

    A head with almost all of its weight there loses little if its cache keeps nothing else. Recent is an eighth of the
    context; the baseline is uniform attention.
    """

    name, details, paper = "streaming", (f"the first {SINKS} and recent tokens",), "Xiao et al. 2025"

    def cases(self, view: AttentionView, probe: Probe) -> tuple[np.ndarray, np.ndarray] | None:
        if not probe.needle:
            return None
        query, key = np.arange(probe.asked, len(view.keys.ids) - 1), np.arange(len(view.keys.ids))
        back = query[:, None] - key  # (cases, S)
        near = (key < SINKS) | ((back >= 0) & (back < probe.recent))
        return (view.weights[:, query] * near).sum(-1), near.sum(-1) / (query + 1)


# ------------------------------------------------------------------------------------------------------------- copying


class Copying(ProbeMeasure):
    """How often attending to a token raises that token's logit more than any other's of the block.

    This is the head's OV circuit: the value of a token, through the head's share of the output projection, read by the
    model's own last norm and output embeddings. The baseline picks a token of the block at random. Attention does not
    tell: `CopiedTokens` counts.
    """

    name, details, paper = "copying", ("the token attended to",), "Elhage et al. 2021"


@dataclass(frozen=True)
class CopiedTokens:
    """Work for an engine: for each repeated probe and site, how many tokens of the block each head copies."""

    tokens: int = 1024

    def summed(self, name: str) -> bool:
        return False

    def fits(self, arrays: Arrays, count: int) -> bool:
        return bool(arrays) and all(one.shape[:1] == (count,) and is_finite(one) for one in arrays.values())

    def __call__(self, model: Any, examples: EncodedSentences, progress: Progress | None = None) -> Arrays:
        found, counts = [site for site in anatomy(model).sites if site.kept], dict[str, np.ndarray]()
        for site in found:
            counts[f"{Copying.name} {site.name} hits"] = np.zeros((len(examples), len(site.kept), 1), np.float32)
            for name in ("cases", "baseline"):
                counts[f"{Copying.name} {site.name} {name}"] = np.zeros((len(examples), 1), np.float32)
        done = 0
        for indices in batches_by_length(examples.lengths, self.tokens):
            ids = torch.tensor(np.stack([_block(examples, i) for i in indices]))  # (B, block), of one length
            start = getattr(examples.sentences[indices[0]], "start", 0)
            for site, copied in copied_tokens(model, found, ids.to(device_of(model)), start):
                name = f"{Copying.name} {site.name}"
                counts[f"{name} hits"][indices, :, 0] = copied.sum(-1).T.cpu().numpy()
                counts[f"{name} cases"][indices] = ids.shape[1] - start
                counts[f"{name} baseline"][indices] = 1
            done += len(indices)
            if progress is not None:
                progress(done / len(examples))
        return counts


def _block(examples: EncodedSentences, index: int) -> np.ndarray:
    """The beginning and the first block of a repeated probe."""
    probe: Any = examples.sentences[index]
    return examples.tokens[index].ids[: probe.start + probe.period]


def copied_tokens(
    model: Any, sites: Sequence[AttentionSite], ids: Tensor, start: int
) -> Iterator[tuple[AttentionSite, Tensor]]:
    """Of each site, which tokens from `start` on its heads' OV circuits raise most: (heads, B, T)"""
    with frozen(model), torch.no_grad():
        values, outputs = _values(model, sites, ids)
        rows = model.get_output_embeddings().weight[ids[:, start:]]  # (B, T, hidden)
        for site in sites:
            parts = head_parts(site, values[site.name][:, start:].flatten(-2))  # (heads, B, T, hidden)
            heads = parts.shape[0]
            # What the head adds alone, through the last norm; a norm's bias is there without it, too.
            written = _read(model, parts.flatten(0, 1), outputs) - _read(model, torch.zeros_like(parts[0, :1]), outputs)
            logits = torch.einsum("hbtd,bsd->hbts", written.unflatten(0, (heads, -1)), rows)
            yield site, logits.argmax(-1) == torch.arange(logits.shape[-1], device=logits.device)


def _values(model: Any, sites: Sequence[AttentionSite], ids: Tensor) -> tuple[dict[str, Tensor], dict[nn.Module, Any]]:
    """The values that each head attends to, (B, T, heads, head_dim), and what every layer returned."""
    values: dict[str, Tensor] = {}
    outputs: dict[nn.Module, Any] = {}

    def keep(site: AttentionSite, projected: Tensor) -> None:
        part, _ = site.inputs[-1]
        if part.stretches(site.module) == ("qkv",):
            values[site.name] = projected.unflatten(-1, (len(site.kept), 3, site.head_dim))[..., 2, :]
        else:  # values come last; several heads may share one
            shared = projected[..., -len(site.kv_kept) * site.head_dim :].unflatten(-1, (-1, site.head_dim))
            values[site.name] = shared[..., list(site.layout.kv_index), :]

    with ExitStack() as hooks:
        for layer in _layers(model):
            hooks.callback(layer.register_forward_hook(lambda layer, _, output: outputs.update({layer: output})).remove)
        for site in sites:
            projection = site.inputs[-1][1]
            hooks.callback(projection.register_forward_hook(lambda _, args, output, of=site: keep(of, output)).remove)
        model(input_ids=ids, **without_cache(model))
    return values, outputs


def _read(model: Any, hidden: Tensor, outputs: dict[nn.Module, Any]) -> Tensor:
    """What the output embeddings are given if the last layer returns `hidden`, (N, T, hidden): the same shape."""
    layers, given = _layers(model), list[Tensor]()

    def returning(layer: nn.Module) -> Any:
        form = outputs[layer]
        return lambda *args, **kwargs: (hidden, *form[1:]) if isinstance(form, tuple) else hidden

    def embed(features: Tensor) -> Tensor:
        given.append(features)
        return features[..., :1]

    with Substitutes() as stubs:
        for layer in layers:
            stubs.put(layer, returning(layer))
        stubs.put(model.get_output_embeddings(), embed)
        model(input_ids=torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device), **without_cache(model))
    return given[0]


def _layers(model: Any) -> list[nn.Module]:
    return list(dict.fromkeys(site.block for site in anatomy(model).sites))


# --------------------------------------------------------------------------------------------------------------- caches


def cache_plan(sites: Sequence[AttentionSite], streaming: Mapping[Head, float], threshold: float) -> dict[str, Any]:
    """Which key-value heads need a whole cache, for tools that cut the others to the initial and recent tokens.

    streaming: each head's score. A key-value head needs the whole cache if one of its query heads does.

    `kv_heads` lists those left. `full_attention_heads` is a table that DuoAttention reads (Xiao et al. 2025): a row for
    each layer, a column for each key-value head: the largest mean weight that one of its queries has elsewhere.
    """
    listed, table = [], []
    for site in sites:
        row = [0.0] * (site.original // site.group)
        for number in site.kv_kept:
            heads = [head for head in site.heads if head.index // site.group == number]
            least = min(streaming[head] for head in heads)
            row[number] = round(1 - least, 6)
            keep = "recent" if least >= threshold else "all"
            listed.append({"layer": site.layer, "kv_head": number, "keep": keep, "long_range": row[number]})
        table.append(row)
    return {"sink_tokens": SINKS, "kv_heads": listed, "full_attention_heads": table}
