"""Pruned models in plain transformers: `AutoModel….from_pretrained(directory, trust_remote_code=True)`.

`config.json` names, for every Auto class that takes the model, a class in `modeling_headcount.py` beside it. That file
is the same for every model, and hands over to `class_for` here. A model that heads were removed from has `Portable` in
front of its class, so that `save_pretrained`, and with it the Trainer, writes the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedModel

from headcount.structure import auto_classes, came_from, mixed, put_mixin, recorded_sites
from headcount.surgery.checkpoint_format import CONFIG, apply_record, check_record

MODELING = "modeling_headcount"
CODE = '''"""A model whose layers have different numbers of heads or neurons left, built by headcount.

transformers runs this file only where trust_remote_code=True was passed. It is the same for every model: headcount
(pip install headcount) reads in config.json what is left, and builds that.
"""

from headcount.surgery import class_for as __getattr__
'''


class Portable:
    """Goes in front of a model class: built from a record, it has the heads recorded; saved, it loads anywhere."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        check_record(getattr(config, "headcount", None), Path(came_from(config)) / CONFIG)
        apply_record(self)

    def save_pretrained(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> None:
        """As transformers does, with the file that lets Auto classes build the model."""
        config = self.config  # type: ignore[attr-defined]
        if recorded_sites(config):
            config.auto_map = auto_map(config)
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        if (Path(save_directory) / CONFIG).is_file() and recorded_sites(config):  # not where only adapters are saved
            (Path(save_directory) / f"{MODELING}.py").write_text(CODE, encoding="utf-8")

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Nothing to do: transformers would copy its own file beside the model, and `save_pretrained` writes ours."""


def class_for(name: str) -> type[PreTrainedModel]:
    """The transformers class of this name, which builds a model with the heads that its configuration records.

    >>> class_for("BertModel").__mro__[2] is transformers.BertModel
    True
    """
    stock = getattr(transformers, name, None) if not name.startswith("_") else None
    if not (isinstance(stock, type) and issubclass(stock, PreTrainedModel)):
        raise AttributeError(f"transformers has no model class {name!r}")
    return mixed(Portable, stock)  # type: ignore[arg-type]


def make_portable(model: Any) -> None:
    """Let a pruned model write what plain transformers needs wherever it is saved."""
    if isinstance(model, PreTrainedModel) and recorded_sites(model.config):
        put_mixin(model, Portable)


def auto_map(config: Any) -> dict[str, str]:
    """Where each Auto class that takes this configuration finds its class.

    >>> auto_map(transformers.BertConfig())["AutoModelForSequenceClassification"]
    'modeling_headcount.BertForSequenceClassification'
    """
    return {auto: f"{MODELING}.{name}" for auto, name in auto_classes(config).items()}
