"""`save`: a directory of safetensors and JSON that replaces an earlier one only when it is whole.

Where every layer has the same number of heads and of neurons left and the family's configuration can say so, the
checkpoint is written in stock form: plain `from_pretrained` loads it without headcount.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel

from headcount.errors import HeadcountError
from headcount.files import path_of, refuse_irreplaceable, replaced_directory
from headcount.heads import FEED_FORWARD
from headcount.model_directory import CONFIG, MODULES, transformer_directory
from headcount.structure import (
    VERSION,
    AttentionSite,
    FeedForwardSite,
    built_empty,
    came_from,
    has_adapters,
    recorded_sites,
    whole_anatomy,
)
from headcount.surgery.model_card import CARD, Evidence, is_own_card, model_card
from headcount.surgery.other_libraries import MODELING, copy_modules, is_of_modules, make_portable, sentence_directory
from headcount.surgery.record import sites_to_record, write_record

Model = TypeVar("Model", bound=nn.Module)
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "target_vocab.json", "merges.txt", "normalizer.json", "bpe.codes", "spiece.model",
    "sentencepiece.bpe.model", "tokenizer.model", "source.spm", "target.spm", "spm.model", "preprocessor_config.json",
    "processor_config.json", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
OWN_FILES = (*TOKENIZER_FILES, CONFIG, "generation_config.json", f"{MODELING}.py")
WEIGHT_FILES = re.compile(r".*\.safetensors|(pytorch|tf|flax)_model.*|model\.safetensors\.index\.json|adapter_.*")


def save(
    model: PreTrainedModel,
    directory: str | Path,
    tokenizer: Any = None,
    *,
    max_shard_size: int | str = "5GB",
    evidence: Evidence | None = None,
) -> Path:
    """Write a model, pruned or not, as `save_pretrained` would, with what is left recorded in `config.json`.

    >>> import tempfile
    >>> from transformers import BertConfig, BertModel
    >>> from headcount import load, remove
    >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(remove(model, ["encoder.0.1"]), f"{folder}/small")
    ...     sorted(file.name for file in path.iterdir())
    ['README.md', 'config.json', 'model.safetensors', 'modeling_headcount.py']

    directory: new, empty, or one that holds a model; that model stays intact until the new one is complete.
    tokenizer: or processor, saved beside the model. Without one, the files of the model that this one came from are
        copied.
    max_shard_size: splits larger checkpoints.
    evidence: what was measured of a pruned model, for its card, README.md. A card of yours is kept.
    """
    if not isinstance(model, PreTrainedModel):
        raise HeadcountError(f"can save a transformers model, not a {type(model).__name__}")
    if has_adapters(model):
        raise HeadcountError(
            "the model has adapters (PEFT), and only they would be saved", advice="merge them into the model first"
        )
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None and not quantizer.is_serializable():
        raise HeadcountError(
            f"transformers does not save a model that it loaded from {quantizer.quantization_config.quant_method}",
            advice="load it dequantized: quantization_config=GgufConfig(dequantize=True) for GGUF",
        )
    if tokenizer is not None and not hasattr(tokenizer, "save_pretrained"):
        raise HeadcountError(
            f"tokenizer is a {type(tokenizer).__name__}", advice="give {tokenizer} a tokenizer or processor, loaded"
        )
    target = path_of(directory, "directory")
    write_record(model)
    make_portable(model)
    refuse_strangers(target)
    try:
        with replaced_directory(target, lambda name: _is_outdated(target / name)) as partial:
            stock = _write(model, partial, max_shard_size)
            if recorded_sites(model.config) and (not (target / CARD).exists() or _is_outdated(target / CARD)):
                card = model_card(model, _title(target), path=_shown(target), stock=stock, evidence=evidence)
                (partial / CARD).write_text(card, encoding="utf-8")
            if tokenizer is not None:
                tokenizer.save_pretrained(partial)
            else:
                _copy_tokenizer(came_from(model), partial)
            around = sentence_directory(model)
            if around is not None:
                copy_modules(around, partial)
    except SafetensorError as error:
        raise HeadcountError(f"cannot save to {directory}: {error}; what was there is untouched") from error
    return target


def rounded(model: Model, precision: torch.dtype | None) -> Model:
    """The model with weights as a precision holds them, changed in place: what is tested is then what is saved in it.

    >>> layer = torch.nn.Linear(1, 1)
    >>> _ = torch.nn.init.constant_(layer.weight, 1.0001)
    >>> rounded(layer, torch.float16).weight.item()
    1.0
    """
    for name, parameter in model.named_parameters() if precision is not None else ():
        parameter.data = parameter.data.to(precision).to(parameter.dtype)
        if not bool(parameter.isfinite().all()):
            raise HeadcountError(f"{precision} cannot hold {name}", advice="choose {dtype} float32")
    return model


def refuse_strangers(directory: Path) -> None:
    """Refuse to save a model in the place of something that is not a model."""
    refuse_irreplaceable(directory)
    if directory.is_dir() and any(directory.iterdir()) and not (directory / CONFIG).is_file():
        raise HeadcountError(
            f"{directory} is not empty and holds no model", advice="choose another directory to save to"
        )


def _is_outdated(file: Path) -> bool:
    """Whether a file belongs to the earlier checkpoint, and not to the user."""
    if file.name == CARD:
        return is_own_card(file)
    if is_of_modules(file) and (file.parent / MODULES).exists():
        return True
    return file.name in OWN_FILES or WEIGHT_FILES.fullmatch(file.name) is not None


def _title(target: Path) -> str:
    """What a card calls the model: by its directory, or by that of the run that it is in."""
    path = target.resolve()
    return path.parent.name if path.name == "model" else path.name


def _shown(target: Path) -> str:
    """The path of a model's directory in its card: as it was given, or its name, so that no paths of a machine show."""
    return target.name if target.is_absolute() or ".." in target.parts else target.as_posix()


def _write(model: Any, directory: Path, max_shard_size: int | str) -> bool:
    """Write weights and configuration, and say whether in stock form."""
    state, changes = as_stock(model)
    model.save_pretrained(directory, state_dict=state, max_shard_size=max_shard_size)
    if changes:
        built = {site.name: site.layout.entry(built=site.kept) for site in sites_to_record(model)}
        changes["headcount"] = {"version": VERSION, "sites": built}
        content = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
        content.pop("auto_map", None)  # the stock form needs none of headcount
        (directory / f"{MODELING}.py").unlink(missing_ok=True)
        text = json.dumps(merged(content, changes), indent=2, sort_keys=True)
        (directory / CONFIG).write_text(f"{text}\n", encoding="utf-8")
    return bool(changes)


def _copy_tokenizer(source: str, directory: Path) -> None:
    """From the directory that the model came from, or what the hub's cache has of it."""
    for name in TOKENIZER_FILES if source else ():
        file: Any = transformer_directory(Path(source)) / name
        if not Path(source).is_dir():
            try:
                file = try_to_load_from_cache(source, name)
            except HFValidationError:
                return
        if isinstance(file, str | Path) and Path(file).is_file():
            shutil.copyfile(file, directory / name)


def as_stock(model: Any) -> tuple[dict[str, Tensor] | None, dict[str, Any]]:
    """The weights and configuration changes with which plain `from_pretrained` loads the model.

    Returns `(None, {})` where there is no such form: an unpruned model, heads or neurons that differ between layers, a
    family whose head size follows from its number of heads, or a number that its configuration does not take.
    """
    found = whole_anatomy(model).sites
    heads = tuple(site for site in found if isinstance(site, AttentionSite))
    layers = tuple(site for site in found if isinstance(site, FeedForwardSite))
    changes: dict[str, Any] = {}
    weights: dict[str, Tensor] | None = None
    if any(len(site.kept) < site.original for site in heads):
        if not _is_uniform(heads):
            return None, {}
        first = heads[0]
        counts = {"heads": len(first.kept), "kv_heads": len(first.kv_kept), "head_dim": first.head_dim}
        changes = {key: counts[what] for what, key in first.family.uniform.items()}
        weights = _stock_weights(model, heads)
    if any(len(site.kept) < site.original for site in layers):
        neurons = _uniform_neurons(model.config, layers)
        if neurons is None:
            return None, {}
        changes = merged(changes, neurons)
    return (weights, changes) if changes and _can_be_built(model, weights, changes) else (None, {})


def _is_uniform(sites: tuple[AttentionSite, ...]) -> bool:
    """Whether every site has the same number of heads, in even groups, in a family that can say so."""
    first = sites[0]
    if any(site.family is not first.family or not site.family.uniform or not site.layout.is_even for site in sites):
        return False
    if any((len(site.kept), len(site.kv_kept)) != (len(first.kept), len(first.kv_kept)) for site in sites):
        return False
    # What layers share goes by index: the heads of one stack must be the same in every layer.
    sharing = [site for site in sites if site.shared]
    return all(site.kept == other.kept for site in sharing for other in sites if other.kind == site.kind)


def _uniform_neurons(config: Any, sites: tuple[FeedForwardSite, ...]) -> dict[str, Any] | None:
    """The configuration's numbers of neurons if all sites that one of them serves agree on it, else None."""
    changes: dict[str, Any] = {}
    for site in sites:
        key, stack, count = site.feed_forward.uniform, site.kind.removesuffix(FEED_FORWARD), len(site.kept)
        if key is None or not count:
            return None
        nested = site.family.configs.get(stack, "")  # absent from the configuration of one tower alone
        key = f"{stack}_{key}" if hasattr(config, f"{stack}_{key}") else key
        if not hasattr(getattr(config, nested, config), key):
            return None
        here = changes.setdefault(nested, {}) if hasattr(config, nested) else changes
        if here.setdefault(key, count) != count:
            return None
    return changes


def merged(content: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A configuration with changes, also inside the configurations that it holds.

    >>> merged({"a": 1, "text_config": {"b": 2, "c": 3}}, {"text_config": {"b": 4}})
    {'a': 1, 'text_config': {'b': 4, 'c': 3}}
    """
    inner = {key: {**content.get(key, {}), **value} for key, value in changes.items() if isinstance(value, dict)}
    return {**content, **changes, **inner}


def _stock_weights(model: Any, sites: tuple[AttentionSite, ...]) -> dict[str, Tensor] | None:
    """What layers share has an entry for every original head; the stock form has only those of the heads left."""
    if not any(site.shared for site in sites):
        return None
    state = dict(model.state_dict())
    for site in sites:
        for name, axis in site.shared.items():
            index = state[name].new_tensor(site.layout.columns).long()
            state[name] = state[name].index_select(axis, index).contiguous()
    return state


def _can_be_built(model: Any, weights: dict[str, Tensor] | None, changes: dict[str, Any]) -> bool:
    """Whether the stock class takes the new configuration (Llama's wants a divisor) and makes these shapes of it."""
    try:
        config = type(model.config).from_dict(merged({**model.config.to_dict(), "headcount": None}, changes))
        stock = built_empty(type(model), config)
    except Exception:  # transformers validates configurations with errors of many kinds
        return False
    have = {name: tensor.shape for name, tensor in (weights or model.state_dict()).items()}
    return have == {name: tensor.shape for name, tensor in stock.state_dict().items()}
