"""Every family headcount knows by name: each file in this folder declares one as `FAMILY`."""

from importlib import import_module
from pkgutil import iter_modules

FAMILIES = tuple(import_module(f"{__name__}.{found.name}").FAMILY for found in iter_modules(__path__))
