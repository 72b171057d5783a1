"""V19's confidence: how sharply a head attends, read off the attention maps."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from headcount.errors import HeadcountError, unknown
from headcount.intervene import capture
from headcount.scoring.per_example import PassOptions, collect
from headcount.structure import AttentionSite, anatomy
from headcount.tasks import Batch, Task

if TYPE_CHECKING:
    from typing_extensions import Unpack

EXCLUDE = ("end", "special", "none")


def confidence(model: nn.Module, task: Task, *, exclude: str = "end", **how: Unpack[PassOptions]) -> np.ndarray:
    """The mean over tokens of a head's largest attention weight (V19 section 4.1), its terms: (examples, heads).

    >>> from headcount.tasks.classification import toy_classifier
    >>> values = confidence(*toy_classifier())
    >>> values.shape, bool((values > 0).all() and (values < 1).all())
    ((2, 8), True)

    exclude: tokens that count neither as queries nor as keys: the "end" of sentence as in V19, every "special" token,
        or "none". Padding never counts. In cross-attention, queries are the decoder's tokens and keys the encoder's.
    how: the options of the pass.
    """
    if exclude not in EXCLUDE:
        raise HeadcountError(unknown("exclude", exclude, EXCLUDE))
    ids = excluded_ids(model, task, exclude)

    def of_batch(model: Any, task: Task, batch: Batch) -> Tensor:
        with torch.no_grad(), tokens_read(model) as read, capture(model, contexts=False) as seen:
            task.outputs(model, batch)
        maps = seen.attention.calls
        sites = [site for site in anatomy(model).sites if site.kept]
        parts = [_of_site(site, maps.get(site.name, []), read, ids) for site in sites]
        return torch.cat(parts, dim=1)  # (B, heads, 2): the sum of the largest weights, and how many there are

    rows = collect(model, task, of_batch, what="attention", **how)
    sums, counts = np.moveaxis(rows, 2, 0)
    means = sums.sum(0) / np.maximum(counts.sum(0), 1)  # (heads,), over tokens
    # An example's row is its part of a mean over tokens: rows average to that mean, and longer examples weigh more.
    return means + (sums - means * counts) / np.maximum(counts.mean(0), 1e-9)


def excluded_ids(model: Any, task: Task, exclude: str) -> set[int]:
    """The ids of the tokens to leave out, from the task's tokenizer or else the model's configuration."""
    source: Any = getattr(task, "tokenizer", None) or model.config
    if exclude == "none":
        return set()
    if exclude == "special":
        every = getattr(source, "all_special_ids", None)
        unknowns = {getattr(source, "unk_token_id", None), getattr(source, "mask_token_id", None)}
        if every is not None:
            return set(every) - unknowns  # these two stand in for words
    names = ("eos_token_id", "sep_token_id") if exclude == "end" else ("eos_token_id", "bos_token_id", "sep_token_id")
    found = [getattr(source, name, None) for name in names]
    return {id for value in found if value is not None for id in (value if isinstance(value, list) else [value])}


def _of_site(site: AttentionSite, maps: list[Tensor], read: TokensRead, ids: set[int]) -> Tensor:
    """(B, heads, 2): the largest weights summed over the queries that count, and how many there are

    maps: (B, heads, T, S), one for each layer that runs this site.
    """
    if not maps:
        raise HeadcountError(f"{site.name} did not run on this data, so it has no attention weights")
    batch, heads, queries, keys = maps[0].shape
    is_key = read.counted(site, "keys", (batch, keys), ids).to(maps[0].device)  # (B, S)
    is_query = read.counted(site, "queries", (batch, queries), ids).to(maps[0].device)  # (B, T)
    is_query = is_query & is_key.any(1, keepdim=True)
    largest = [weights.masked_fill(~is_key[:, None, None], 0).amax(-1) for weights in maps]  # (B, heads, T)
    total = torch.stack(largest).sum(0).mul(is_query[:, None]).sum(-1)  # (B, heads)
    count = len(maps) * is_query.sum(1)[:, None].expand(batch, heads)
    return torch.stack([total, count.to(total)], dim=-1)


class TokensRead:
    """The token ids (B, T) that each side of a model was given, and which of them are not padding."""

    def __init__(self, pad: int | None) -> None:
        self.pad = pad
        self.sides: dict[str, tuple[Tensor, Tensor]] = {}  # token ids, and whether each is real, both (B, T)

    def add(self, side: str, ids: Any, mask: Any) -> None:
        if not isinstance(ids, Tensor):  # images and sounds have no tokens
            return
        if isinstance(mask, Tensor) and mask.shape == ids.shape:
            real = mask.bool()
        elif self.pad is None:
            real = torch.ones_like(ids, dtype=torch.bool)
        else:  # padding is at the end then; a decoder can start with the same token
            real = (ids != self.pad).flip(1).cumsum(1).flip(1) > 0
            real[:, 0] = True
        self.sides[side] = (ids, real)

    def counted(self, site: AttentionSite, which: str, shape: tuple[int, int], excluded: set[int]) -> Tensor:
        """(B, T) which "queries" or "keys" of a site are neither padding nor excluded."""
        side = "encoder" if site.kind == "cross" and which == "keys" else site.kind
        ids, real = self.sides.get("decoder" if side == "cross" else side, self.sides.get("model", (None, None)))
        if ids is None or real is None or tuple(ids.shape) != shape:
            return torch.ones(shape, dtype=torch.bool)
        return real & ~torch.isin(ids, torch.tensor(sorted(excluded), dtype=ids.dtype, device=ids.device))


@contextmanager
def tokens_read(model: Any) -> Iterator[TokensRead]:
    """Record the tokens that the model, or its encoder and its decoder, is given inside the block."""
    config = model.config
    read = TokensRead(getattr(config.get_text_config(), "pad_token_id", None))
    both = {"encoder": model.get_encoder(), "decoder": model.get_decoder()} if config.is_encoder_decoder else {}
    with ExitStack() as stack:
        for side, module in (both or {"model": model}).items():
            stack.callback(module.register_forward_pre_hook(_watch(read, side, module), with_kwargs=True).remove)
        yield read


def _watch(read: TokensRead, side: str, module: nn.Module) -> Any:
    signature = inspect.signature(module.forward)

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = signature.bind_partial(*args, **kwargs).arguments
        read.add(side, given.get("input_ids"), given.get("attention_mask"))

    return hook
