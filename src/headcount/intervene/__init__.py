"""What runs inside a block sees the model otherwise: heads turned off, edited or watched."""

from headcount.intervene.capturing import capture, is_captured
from headcount.intervene.editing import Replace, Scale, edited, masked

__all__ = ["Replace", "Scale", "capture", "edited", "is_captured", "masked"]
