""""""

from headcount.intervene.capturing import capture
from headcount.intervene.masking import masked

__all__ = [
    "capture",
    "masked",
]
