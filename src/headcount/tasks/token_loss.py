"""Losses and counts of predicted tokens, shared by translation and language modelling."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """(B,) mean negative log likelihood of each example's predicted tokens.

    >>> import torch
    >>> logits = torch.zeros(2, 3, 4)  # (B, T, V): four equally likely tokens
    >>> labels = torch.tensor([[1, 2, 3], [0, -100, -100]])
    >>> token_losses(logits, labels).exp().round(decimals=4).tolist()
    [4.0, 4.0]

    labels: (B, T), what the logits of the same position should predict; -100 where nothing is.
    """
    return _likelihoods(logits, labels).sum(1) / (labels != -100).sum(1).clamp(min=1)


def token_counts(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) each: predicted tokens, how many of them are right, and their negative log likelihood in sum.

    >>> import torch
    >>> [x.tolist() for x in token_counts(torch.eye(3)[None] * 50, torch.tensor([[0, 2, -100]]))]
    [[2], [1], [50.0]]
    """
    predicted = labels != -100
    right = (logits.argmax(-1) == labels) & predicted
    return predicted.sum(1), right.sum(1), _likelihoods(logits, labels).sum(1)


def _likelihoods(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, T) negative log likelihood of each token, 0 where nothing is predicted."""
    return F.cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=-100, reduction="none")
