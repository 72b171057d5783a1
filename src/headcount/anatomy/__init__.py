"""Where the heads are: sites, families, and how to find them."""

from headcount.anatomy.device import device_of
from headcount.anatomy.families import FAMILIES
from headcount.anatomy.family import Family, Part, separate
from headcount.anatomy.find import anatomy
from headcount.anatomy.sites import Anatomy, AttentionSite

__all__ = ["FAMILIES", "Anatomy", "AttentionSite", "Family", "Part", "anatomy", "device_of", "separate"]
