""""""

from headcount.intervene.captured import capture
from headcount.intervene.masked import masked

__all__ = [
    "capture",
    "masked",
]
