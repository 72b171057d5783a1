"""Recovery: fine-tune a pruned model for a few epochs, taught by the whole one, and keep the best of them.

    loss = (1 - distill) L_task + distill t^2 KL(whole || pruned) + hidden mean_l |h_l - h'_l|^2 / |h_l|^2

with the softened predictions of both models (temperature t, Hinton et al. 2015), and the hidden states after every
layer l, `h` of the whole model and `h'` of the pruned one (TinyBERT, Jiao et al. 2020; CoFi, Xia et al. 2022). They
have the same size, since pruning leaves the residual stream alone: no projection between them is needed. The last
layer is left out: the predictions judge it, at the positions that they read.

The examples can be varied (`augment`): a fine-tuned model has memorised its training texts, so that what it predicts on
them is little more than their labels. Its predictions and hidden states on variations of them say how it judges a new
text.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headcount.engine import batches_by_length
from headcount.errors import HeadcountError
from headcount.evaluation import evaluate
from headcount.runs import fingerprint
from headcount.settings import Recovery
from headcount.structure import anatomy
from headcount.tasks import BaseTask, Batch, Task, counted
from headcount.training.checkpoint import Checkpointer, set_weights, weights_of
from headcount.training.loop import Training

SPLICED = 0.5  # share of texts whose end is another text's
MASKED = 0.5  # share of the replaced tokens that become the mask token, if there is one
NEAR = 200  # how far apart in the order of lengths two spliced texts may be


def recover(
    pruned: Any,
    task: Task,
    select_task: Task,
    settings: Recovery,
    *,
    whole: nn.Module | None = None,
    directory: str | Path | None = None,
    progress: Any = None,
) -> list[float]:
    """Fine-tune a pruned model in place; it ends as the best of the epochs, the starting point included.

    task: to train on. select_task: to choose the best epoch on. whole: the teacher, unless `distill`, `hidden` and
    `augment` are 0.
    directory: keeps a checkpoint after each epoch; the same call then resumes, and ends in the same weights.
    progress: called with the share done. Returns the metric on `select_task` before and after each epoch.
    """
    training = Recovering(pruned, task, settings, whole)
    better = max if select_task.metric.higher_is_better else min
    signature = {"settings": asdict(settings), "start": fingerprint(pruned), "task": task.signature()}
    if directory is not None and training.whole is not None:
        signature["whole"] = fingerprint(training.whole)
    checkpoint = Checkpointer(directory, "recovery", signature)
    scores = checkpoint.read(lambda state: _scores(state["scores"], settings.epochs)) or []
    if scores:
        best = checkpoint.restore(pruned, training.optimizer).copies.get("best") or weights_of(pruned)
    else:
        best = weights_of(pruned)
        scores.append(evaluate(pruned, select_task).score())
        checkpoint.keep({"scores": scores}, pruned, training.optimizer, copies={"best": best})

    def finished(epoch: int) -> None:
        nonlocal best
        scores.append(evaluate(pruned, select_task).score())
        if better(scores) == scores[-1] and scores.count(scores[-1]) == 1:
            best = weights_of(pruned)
        checkpoint.keep({"scores": scores}, pruned, training.optimizer, copies={"best": best})

    training.run(len(scores) - 1, finished, lambda share, loss: None if progress is None else progress(share))
    set_weights(pruned, best)
    pruned.eval()
    return scores


class Recovering(Training):
    """Towards the labels, and towards the whole model's predictions and hidden states."""

    def __init__(self, model: Any, task: Task, settings: Recovery, whole: nn.Module | None) -> None:
        groups = [{"params": list(model.parameters()), "lr": settings.lr}]
        batches = batches_by_length(task.lengths, settings.tokens)
        super().__init__(
            model, task, groups, batches=batches, epochs=settings.epochs, seed=settings.seed, what="the recovery"
        )
        if settings.distills and whole is None:
            raise HeadcountError("distillation needs the whole model as its teacher", advice="pass {whole}")
        self.settings, self.whole = settings, whole if settings.distills else None
        self.varied: Any = None  # the task with other words, anew in each epoch
        if settings.augment and not has_words(task):
            raise HeadcountError(
                f"{type(task).__name__} has no token ids with a tokenizer, so its words cannot be replaced",
                advice="leave {augment} at 0",
            )

    def epoch(self, number: int, progress: Any = None) -> None:
        if self.settings.augment:
            self.varied = varied(self.task, self.settings.augment, [self.seed, number])
        super().epoch(number, progress)

    def loss(self, step: int, batch: Batch) -> Tensor:
        if self.whole is None:
            return super().loss(step, batch)
        self.model.eval()
        share, hidden = self.settings.distill, self.settings.hidden
        if self.varied is not None and step % 2 == 0:
            batch, share = self.varied.batch(batch.indices).to(self.device), 1.0
        with torch.no_grad(), hidden_states(self.whole.eval()) as wanted:
            theirs = self.task.outputs(self.whole, batch)
        with hidden_states(self.model) as found:
            ours = self.task.outputs(self.model, batch)
        loss = share * self._divergence(ours, theirs, batch) if share else ours.new_zeros(())
        if share < 1:
            loss = loss + (1 - share) * self.task.losses(ours, batch).mean()
        if hidden and len(found) > 1:
            loss = loss + hidden * distance(found[:-1], wanted[:-1], batch)
        return loss

    def _divergence(self, ours: Tensor, theirs: Tensor, batch: Batch) -> Tensor:
        """From the whole model's predictions: KL of softened distributions, squares of numbers, cosines of vectors."""
        (ours, _), (theirs, _) = counted(ours, batch), counted(theirs, batch)  # (P, D)
        compares, heat = getattr(self.task, "compares", "distributions"), self.settings.temperature
        if compares == "numbers":
            return (ours - theirs).square().sum(-1).mean()
        if compares == "vectors":
            return (1 - (ours * theirs).sum(-1)).mean()
        ours, theirs = F.log_softmax(ours / heat, -1), F.log_softmax(theirs / heat, -1)
        wanted = theirs.exp()  # 0 for choices that only other examples of the batch have
        return torch.where(wanted > 0, wanted * (theirs - ours), 0.0).sum(-1).mean() * heat**2


@contextmanager
def hidden_states(model: nn.Module) -> Iterator[list[tuple[str, Tensor]]]:
    """Collect, as long as the block lasts, what each Transformer layer puts out: its kind and (B, T, d), as they run.

    >>> from transformers import BertConfig, BertModel
    >>> size = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    >>> model = BertModel(BertConfig(**size))
    >>> with hidden_states(model) as found:
    ...     _ = model(torch.tensor([[5, 6, 7]]))
    >>> [(kind, tuple(hidden.shape)) for kind, hidden in found]
    [('encoder', (1, 3, 8)), ('encoder', (1, 3, 8))]

    Hooks on the layers see what every family computes, once for each time that a shared layer runs.
    """
    found: list[tuple[str, Tensor]] = []
    sites = anatomy(model).sites
    decodes = any(site.kind == "cross" for site in sites)  # a decoder's text is then another one than the input

    def collecting(kind: str) -> Any:
        def hook(block: nn.Module, args: Any, output: Any) -> None:
            found.append((kind, output[0] if isinstance(output, tuple) else output))

        return hook

    with ExitStack() as stack:
        for block, kind in {site.block: site.kind for site in reversed(sites)}.items():
            kind = "target" if decodes and kind in ("decoder", "cross") else kind
            stack.callback(block.register_forward_hook(collecting(kind)).remove)
        yield found


def distance(found: list[tuple[str, Tensor]], wanted: list[tuple[str, Tensor]], batch: Batch) -> Tensor:
    """How far hidden states are from the wanted ones: the squared error of each token's, relative to its square.

    Relative, because the scale differs between models, layers and, where the first token attracts attention, tokens.
    Averaged over tokens that are not padding, then over layers.
    """
    errors = []
    for (kind, ours), (_, theirs) in zip(found, wanted, strict=True):
        ours, theirs = ours.float(), theirs.float()
        error = (ours - theirs).square().sum(-1) / theirs.square().sum(-1).clamp_min(1e-6)  # (B, T)
        there = _there(kind, batch)
        if there is not None and there.shape == error.shape:
            error = error[there.to(error.device)]
        errors.append(error.mean())
    return torch.stack(errors).mean()


def _there(kind: str, batch: Batch) -> Tensor | None:
    """(B, T) which positions are not padding, if that is known."""
    if kind == "target":
        return None if batch.labels is None or batch.labels.ndim < 2 else batch.labels != -100
    mask = batch.inputs.get("attention_mask")
    return None if mask is None or kind == "vision" else mask.bool()


def _scores(scores: Any, epochs: int) -> list[float]:
    """The scores that a checkpoint tells: one before the first epoch, and one after each."""
    if not 1 <= len(scores) <= epochs + 1 or not all(isinstance(score, float) for score in scores):
        raise ValueError(f"scores {scores!r}")
    return list(scores)


def varied(task: Task, share: float, seed: Sequence[int]) -> Any:
    """The task with other texts of the same lengths; its labels stay, and no longer hold.

    >>> from headcount.tasks import Classification
    >>> from headcount.tasks.text import word_tokenizer
    >>> tokenizer = word_tokenizer("a fine dull film dog runs sleeps")
    >>> rows = [{"text": "a fine film runs", "label": 1}, {"text": "a dull dog sleeps", "label": 0}]
    >>> task = Classification(rows, tokenizer)
    >>> [tokenizer.decode(ids) for ids in varied(task, 0.2, [0]).features["input_ids"]]
    ['<s> dull <mask> film runs </s>', '<s> a fine film a </s>']

    Half of the texts end as another one of similar length does, from a random place on. Then tokens are replaced by
    others, drawn as often as they occur in the task, or by the mask token; their share is drawn for each text, between
    0 and twice `share`. Special tokens stay where they are.

    task: one that `has_words`. seed: the same numbers give the same texts.
    """
    words_of: Any = task
    features, tokenizer = words_of.features, words_of.tokenizer
    rng, special = np.random.default_rng(list(seed)), np.array(sorted(tokenizer.all_special_ids))
    texts = [np.array(ids) for ids in features["input_ids"]]
    words = [~np.isin(ids, special) for ids in texts]  # (T,) of each text, which tokens may change
    pool = np.concatenate([ids[there] for ids, there in zip(texts, words, strict=True)])
    if not len(pool):
        return task
    order = np.argsort([len(ids) for ids in texts], kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    mask = getattr(tokenizer, "mask_token_id", None)
    made = []
    for number, (ids, there) in enumerate(zip(texts, words, strict=True)):
        ids = ids.copy()
        if rng.random() < SPLICED:
            other = order[np.clip(rank[number] + rng.integers(-NEAR, NEAR + 1), 0, len(order) - 1)]
            _splice(ids, there, texts[other], words[other], rng)
        hit = there & (rng.random(len(ids)) < 2 * share * rng.random())
        ids[hit] = rng.choice(pool, hit.sum())
        if mask is not None:
            ids[hit & (rng.random(len(ids)) < MASKED)] = mask
        made.append(ids.tolist())
    part: Any = copy.copy(task)
    part.features = {**features, "input_ids": made}
    return part


def has_words(task: Task) -> bool:
    """Whether a task makes its batches of token ids alone, and has a tokenizer that tells special ones."""
    batches = getattr(type(task), "batch", None) is BaseTask.batch
    return batches and "input_ids" in getattr(task, "features", ()) and hasattr(task, "tokenizer")


def _splice(ids: Any, there: Any, other: Any, words: Any, rng: np.random.Generator) -> None:
    """Let a text end as another one does: from a random place on, aligned at their ends, where both have words."""
    shared = min(len(ids), len(other))
    reach = int(rng.integers(0, shared + 1))
    if reach:
        both = there[-reach:] & words[-reach:]
        ids[-reach:][both] = other[-reach:][both]
