"""What runs inside a block sees the model otherwise: heads turned off, or watched."""

from headcount.intervene.capturing import capture, is_captured
from headcount.intervene.masking import masked

__all__ = ["capture", "is_captured", "masked"]
