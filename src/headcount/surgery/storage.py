"""`save`: a directory of safetensors and JSON that replaces an earlier one only when it is whole."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headcount.errors import HeadcountError
from headcount.surgery.remove import write_record
from headcount.surgery.stock import as_stock

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "source.spm",
    "target.spm", "spm.model", "preprocessor_config.json", "processor_config.json", "chat_template.jinja",
)  # fmt: skip


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

    `tokenizer` (or processor) is saved beside it; without one, the files of the directory that the model came from are
    kept. `max_shard_size` splits larger checkpoints. An earlier checkpoint stays intact until the new one is complete.
    Where every layer has the same number of heads and the family allows it, plain `from_pretrained` loads the result.
    """
    if not isinstance(model, PreTrainedModel):
        raise HeadcountError(f"can save a transformers model, not a {type(model).__name__}")
    write_record(model)
    target = Path(directory)
    with replacing(target) as partial:
        state, changes = as_stock(model)
        model.save_pretrained(partial, state_dict=state, max_shard_size=max_shard_size)
        if changes:
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
    for name in TOKENIZER_FILES:
        file = Path(source) / name
        if source and file.is_file():
            shutil.copyfile(file, directory / name)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A new directory beside the target that takes its place when the block ends well, and vanishes otherwise."""
    if target.exists() and not target.is_dir():
        raise HeadcountError(f"{target} is a file; choose another directory to save to")
    if target.is_dir() and any(target.iterdir()) and not (target / "config.json").is_file():
        raise HeadcountError(f"{target} is not empty and holds no model; choose another directory to save to")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    except OSError as error:
        raise HeadcountError(f"cannot write beside {target}: {error.strerror}") from error
    try:
        partial.chmod(0o777 & ~_umask())
        yield partial
        _sync(partial)
        _swap(partial, target)
    except OSError as error:
        raise HeadcountError(
            f"cannot save to {target}: {error.strerror or error}; what was there is untouched"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _swap(partial: Path, target: Path) -> None:
    """Put the new directory in place of the old one, and carry over files that are no part of a checkpoint."""
    old = partial.with_suffix(".replaced")
    if target.exists():
        os.rename(target, old)
    try:
        os.rename(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.rename(old, target)
        raise
    if old.exists():
        stale = {*TOKENIZER_FILES, "config.json", "generation_config.json", "model.safetensors.index.json"}
        for file in old.iterdir():
            if file.name not in stale and file.suffix != ".safetensors" and not (target / file.name).exists():
                os.rename(file, target / file.name)
        shutil.rmtree(old, ignore_errors=True)


def _sync(directory: Path) -> None:
    for file in directory.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
