"""Matrix products of 32-bit floats, by the faster of the two libraries that torch comes with.

torch hands them to MKL, which leaves half of an AMD processor with AVX-512 unused; oneDNN uses all of it, at the same
precision (`python -m benchmarks.products` measures both). Everywhere else, nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headcount.structure import has_onednn, onednn_linear, torch_is_overridden

LEAST = 2**21  # multiplications; what fewer of them gain is lost to overhead


@contextmanager
def fast_products() -> Iterator[None]:
    """For the block, let linear layers on the CPU multiply by oneDNN if it is faster here, gradients included.

    >>> x, layer = torch.randn(300, 64), nn.Linear(64, 128)
    >>> with torch.no_grad(), fast_products():
    ...     found = layer(x)
    >>> torch.allclose(found, layer(x), atol=1e-5)
    True
    """
    if not onednn_is_faster():
        yield
        return
    _replacement.enter()
    try:
        yield
    finally:
        _replacement.leave()


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right of two matrices, without gradients."""
    if onednn_is_faster() and _suits(left, right.T):
        return _multiply(left, right.T)
    return left @ right


@cache
def onednn_is_faster() -> bool:
    """Whether this is an AMD processor with AVX-512, by what torch knows of it."""
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    is_amd = "AMD" in str(known.get("cpu_name", ""))
    return is_amd and bool(known.get("avx512_f")) and torch.backends.mkl.is_available() and has_onednn()


def _multiply(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows @ weight.T + bias"""
    whole = weight.is_contiguous() or weight.T.is_contiguous()
    return onednn_linear(rows, weight if whole else weight.contiguous(), bias)


def _suits(rows: Any, weight: Any) -> bool:
    """Whether both are plain matrices of 32-bit floats on the CPU, and large enough."""
    return (
        type(rows) in (Tensor, nn.Parameter)
        and type(weight) in (Tensor, nn.Parameter)
        and rows.dtype == weight.dtype == torch.float32
        and rows.device.type == weight.device.type == "cpu"
        and rows.numel() * len(weight) >= LEAST
        and not torch.is_autocast_enabled("cpu")
        and not torch_is_overridden()
    )


class _Linear(torch.autograd.Function):
    """y = x W^T + b, with dL/dx = g W, dL/dW = g^T x, dL/db = sum g."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows if ctx.needs_input_grad[1] else None, weight)
        return _multiply(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        flat = gradient.flatten(0, -2)  # (N, out)
        of_rows = _multiply(gradient, weight.T) if ctx.needs_input_grad[0] else None
        of_weight = _multiply(flat.T, rows.flatten(0, -2).T) if ctx.needs_input_grad[1] else None
        return of_rows, of_weight, flat.sum(0) if ctx.needs_input_grad[2] else None


class _Replacement:
    """`torch.nn.functional.linear` as it is while any block needs it, in any thread, and as it was afterwards."""

    def __init__(self) -> None:
        self.lock, self.depth = Lock(), 0
        self.plain: Any = F.linear

    def enter(self) -> None:
        with self.lock:
            if self.depth == 0:
                self.plain, F.linear = F.linear, self.linear
            self.depth += 1

    def leave(self) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0:
                F.linear = self.plain

    def linear(self, input: Any, weight: Any, bias: Any = None) -> Any:
        if not _suits(input, weight):
            return self.plain(input, weight, bias)
        if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (input, weight, bias)):
            return _Linear.apply(input, weight, bias)
        return _multiply(input, weight, bias)


_replacement = _Replacement()
