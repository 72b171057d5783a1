"""Every family headcount knows by name: each file in this folder declares one as `FAMILY`, and is found by itself.

The fields of a declaration are in `structure/family_declaration.py`; `phi3.py` is a short example.
"""

from importlib import import_module
from pkgutil import iter_modules

FAMILIES = tuple(import_module(f"{__name__}.{found.name}").FAMILY for found in iter_modules(__path__))
