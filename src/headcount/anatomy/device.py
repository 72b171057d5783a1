"""Where a model takes its inputs, also one that is spread over several devices."""

from __future__ import annotations

from typing import Any

import torch


def device_of(model: Any) -> torch.device:
    """The device that inputs go to.

    >>> device_of(torch.nn.Linear(2, 2))
    device(type='cpu')

    Weights that accelerate keeps elsewhere until they are needed are on no device at all; its hook in front of the
    model knows where they will be used.
    """
    for weight in model.parameters():
        if weight.device.type != "meta":
            return weight.device
    for module in model.modules():
        device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device)
    return torch.device("cpu")
