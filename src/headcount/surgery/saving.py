"""`save`: a directory of safetensors and JSON that replaces an earlier one only when it is whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from transformers import PreTrainedModel

from headcount.errors import HeadcountError
from headcount.structure import anatomy
from headcount.surgery.record import entry, write_record
from headcount.surgery.replace import replacing
from headcount.surgery.stock import as_stock

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "target_vocab.json", "merges.txt", "normalizer.json", "bpe.codes", "spiece.model",
    "sentencepiece.bpe.model", "tokenizer.model", "source.spm", "target.spm", "spm.model", "preprocessor_config.json",
    "processor_config.json", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
OWN_FILES = (*TOKENIZER_FILES, "config.json", "generation_config.json")


def save(
    model: PreTrainedModel, directory: str | Path, *, tokenizer: Any = None, max_shard_size: int | str = "5GB"
) -> Path:
    """Write a model, pruned or not, as `save_pretrained` would, with the heads left recorded in `config.json`.

    >>> import tempfile
    >>> from transformers import BertConfig, BertModel
    >>> from headcount import load, remove
    >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(remove(model, ["encoder.0.1"]), f"{folder}/small")
    ...     sorted(file.name for file in path.iterdir())
    ['config.json', 'model.safetensors']

    `tokenizer` (or processor) is saved beside it; without one, the files of the model that this one came from are
    kept. `max_shard_size` splits larger checkpoints. An earlier checkpoint stays intact until the new one is complete.
    Where every layer has the same number of heads and the family allows it, plain `from_pretrained` loads the result.
    """
    if not isinstance(model, PreTrainedModel):
        raise HeadcountError(f"can save a transformers model, not a {type(model).__name__}")
    if getattr(model, "_hf_peft_config_loaded", False):
        raise HeadcountError("the model has adapters (PEFT), and only they would be saved; merge them into it first")
    write_record(model)
    target = Path(directory)
    with replacing(target, OWN_FILES) as partial:
        state, changes = as_stock(model)
        model.save_pretrained(partial, state_dict=state, max_shard_size=max_shard_size)
        if changes:
            built = {site.name: entry(site, site.kept) for site in anatomy(model).sites}
            changes["headcount"] = {**model.config.headcount, "sites": built}
            _update_json(partial / "config.json", changes)
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)
        else:
            _copy_tokenizer(getattr(model.config, "_name_or_path", ""), partial)
    return target


def _update_json(path: Path, changes: dict[str, Any]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **changes}, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _copy_tokenizer(source: str, directory: Path) -> None:
    """From the directory that the model came from, or what the hub's cache has of it."""
    for name in TOKENIZER_FILES if source else ():
        file: Any = Path(source) / name
        if not Path(source).is_dir():
            try:
                file = try_to_load_from_cache(source, name)
            except HFValidationError:
                return
        if isinstance(file, str | Path) and Path(file).is_file():
            shutil.copyfile(file, directory / name)
