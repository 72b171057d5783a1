"""Saved models in other libraries: transformers' Auto classes, and directories of sentence-transformers.

`AutoModel….from_pretrained(directory, trust_remote_code=True)`: `config.json` names, for every Auto class that takes
the model, a class in `modeling_headcount.py` beside it. That file is the same for every model, and hands over to
`class_for` here. A model that heads were removed from has `Portable` in front of its class, so that `save_pretrained`,
and with it the Trainer, writes the same.

sentence-transformers: `modules.json` names a transformer, its pooling, and whatever follows. The transformer is a model
like any other: it is loaded from where `modules.json` says, and a smaller one is saved with the other modules around
it, so that `SentenceTransformer(directory)` encodes. Nothing of these modules is run.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from transformers import PreTrainedModel

from headcount.errors import BadCheckpoint
from headcount.files import read_object
from headcount.model_directory import CONFIG, MODULES, read_modules, transformer_directory, transformer_module
from headcount.structure import auto_classes, came_from, mixed, put_mixin, recorded_sites
from headcount.surgery.record import apply_record, check_record

MODELING = "modeling_headcount"
CODE = '''"""A model whose layers have different numbers of heads or neurons left, built by headcount.

transformers runs this file only where trust_remote_code=True was passed. It is the same for every model: headcount
(pip install headcount) reads in config.json what is left, and builds that.
"""

from headcount.surgery import class_for as __getattr__
'''
SETTINGS = ("config_sentence_transformers.json", "sentence_bert_config.json")
COPIED = (".json", ".safetensors", ".txt", ".model", ".bin")  # of the other modules, read by nobody here


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


def sentence_directory(model: Any) -> Path | None:
    """The directory of sentence-transformers that a model was the transformer of, here or in the hub's cache."""
    source = came_from(model)
    if source and not Path(source).is_dir():
        try:
            cached = try_to_load_from_cache(source, MODULES)
        except HFValidationError:
            return None
        source = str(Path(cached).parent) if isinstance(cached, str) else ""
    if not source:
        return None
    here = Path(source)
    root = here if (here / MODULES).is_file() else here.parent
    if not (root / MODULES).is_file() or transformer_directory(root).resolve() not in (here.resolve(), root.resolve()):
        return None
    saved = (read_object(transformer_directory(root) / CONFIG, BadCheckpoint) or {}).get("architectures")
    return root if saved == [type(model).__name__] else None  # not a classifier that started from the transformer


def copy_modules(source: Path, target: Path) -> None:
    """Put the modules of one directory around the transformer that was saved in another, at its top."""
    modules = read_modules(source)
    transformer = transformer_module(source)
    for module in modules:
        folder = source / module["path"]
        if module == transformer:
            module["path"] = ""
        elif module["path"] and folder.is_dir():
            for file in sorted(path for path in folder.rglob("*") if path.suffix in COPIED and path.is_file()):
                place = target / file.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)
    for name in SETTINGS:
        for place in (transformer_directory(source), source):
            if (place / name).is_file():
                shutil.copyfile(place / name, target / name)
                break
    (target / MODULES).write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")


def is_of_modules(file: Path) -> bool:
    """Whether a file or directory was put beside a transformer by sentence-transformers."""
    return file.name in (MODULES, *SETTINGS) or (file.is_dir() and file.name.partition("_")[0].isdecimal())
