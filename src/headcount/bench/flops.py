"""How much arithmetic a model does: the limit of what any pruning can gain, whatever the machine.

Matrix products, convolutions and attention count, two operations per multiply-add; what is done element by element
(normalisation, activation, softmax) does not, as is usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def count_flops(run: Callable[[], Any]) -> int:
    """The floating-point operations of what `run` does.

    >>> layer = torch.nn.Linear(8, 4)
    >>> count_flops(lambda: layer(torch.ones(10, 8)))  # 10 rows, 8 x 4 multiply-adds each
    640

    Counted as operators are called, so that every kernel is seen; PyTorch's own counter passes over attention on CPUs.
    """
    counter = _Counter()
    with torch.no_grad(), counter:
        run()
    return counter.flops


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name not in COSTS and not _is_attention(name) and func is not torch.ops.prim.device.default:
            with self:  # an operator made of others is counted by them
                taken_apart = func.decompose(*args, **kwargs)
            if taken_apart is not NotImplemented:
                return taken_apart
        output = func(*args, **kwargs)
        if _is_attention(name):
            self.flops += _attention(*args[:3])
        elif name in COSTS:
            self.flops += COSTS[name](output, *args)
        return output


def _is_attention(name: str) -> bool:
    return "attention" in name and ("dot_product" in name or name.endswith("attention_forward"))


def _attention(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Scores and weighted sum: 2 B H T S d each. Causal attention counts in full, as in PyTorch's counter."""
    batch, heads, length, size = query.shape
    return 2 * batch * heads * length * key.shape[-2] * (size + value.shape[-1])


def _mm(output: Tensor, left: Tensor, right: Tensor) -> int:
    return 2 * output.numel() * left.shape[-1]


def _addmm(output: Tensor, added: Tensor, left: Tensor, right: Tensor) -> int:
    return 2 * output.numel() * left.shape[-1]


def _convolution(output: Tensor, image: Tensor, weight: Tensor, *rest: Any) -> int:
    return 2 * output.numel() * math.prod(weight.shape[1:])


COSTS: dict[str, Callable[..., int]] = {
    "mm": _mm,
    "bmm": _mm,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "convolution": _convolution,
    "_convolution": _convolution,
    "mkldnn_convolution": _convolution,
}
