"""Which tokens a model's encoder and decoder read, seen where they read them, and which of these are padding."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headcount.anatomy import AttentionSite


class TokensRead:
    """The ids (B, T) that each side of a model was given, and which of them are no padding."""

    def __init__(self, pad: int | None) -> None:
        self.pad = pad
        self.sides: dict[str, tuple[Tensor, Tensor]] = {}  # ids and real, both (B, T)

    def add(self, side: str, ids: Any, mask: Any) -> None:
        if not isinstance(ids, Tensor):  # images and sounds have no tokens
            return
        if isinstance(mask, Tensor) and mask.shape == ids.shape:
            real = mask.bool()
        elif self.pad is None:
            real = torch.ones_like(ids, dtype=torch.bool)
        else:  # padding is at the end then; a decoder may start with the same token
            real = (ids != self.pad).flip(1).cumsum(1).flip(1) > 0
            real[:, 0] = True
        self.sides[side] = (ids, real)

    def counted(self, site: AttentionSite, which: str, shape: tuple[int, int], excluded: set[int]) -> Tensor:
        """(B, T) the tokens at a site, as "queries" or as "keys", that are neither padding nor excluded."""
        side = "encoder" if site.kind == "cross" and which == "keys" else site.kind
        ids, real = self.sides.get("decoder" if side == "cross" else side, self.sides.get("model", (None, None)))
        if ids is None or real is None or tuple(ids.shape) != shape:
            return torch.ones(shape, dtype=torch.bool)
        return real & ~torch.isin(ids, torch.tensor(sorted(excluded), dtype=ids.dtype, device=ids.device))


@contextmanager
def tokens_read(model: Any) -> Iterator[TokensRead]:
    """Watch what the model, or its encoder and its decoder, is given inside the block."""
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
