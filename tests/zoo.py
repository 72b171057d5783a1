"""Tiny random models of every supported family, and inputs for them: what the tests run on.

One table, `ZOO`, says for each family how it is configured and which classes to try. Everything else is
derived from it: `build` makes a model, `inputs` makes a batch for it, `generate` decodes with it and
`main_output` picks the tensor to compare. The models have three layers and four heads (eight where key-value
heads are shared) and run in milliseconds; their weights are random but not degenerate: every head changes the
output.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

LAYERS, HEADS, GROUPED_HEADS, VOCAB, WIDTH, LABELS = 3, 4, 8, 61, 24, 3
PAD, BOS, EOS = 1, 0, 3  # ordinary tokens are 4 and above
TOKENS = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
SIZE = {"vocab_size": VOCAB, "max_position_embeddings": 64, "num_labels": LABELS, **TOKENS}


@dataclass(frozen=True)
class Family:
    """How to make a model of a family: its config, its classes (the bare model first), and what it reads."""

    config: Callable[[], PreTrainedConfig]
    classes: tuple[str, ...]
    reads: str = "text"  # text, prompt (decoder only), pair (encoder-decoder), audio, image, image+text
    kernels: tuple[str, ...] = ("eager", "sdpa")
    generator: str | None = None  # the class that can `generate`


def _encoder(config: str, model: str, *heads: str, kernels: tuple[str, ...] = ("eager", "sdpa"), **settings):
    """A BERT-like family."""
    size = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    size |= {"intermediate_size": 2 * WIDTH, **SIZE, **settings}
    classes = (f"{model}Model", *(model + head for head in heads))
    return Family(_config(config, size), classes, kernels=kernels)


def _decoder(config: str, model: str, *heads: str, kernels: tuple[str, ...] = ("eager", "sdpa"), **settings):
    """A GPT-like family with one key-value head per query head."""
    size = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    size |= {"intermediate_size": 2 * WIDTH, **SIZE, **settings}
    classes = (f"{model}Model", *(model + head for head in heads))
    return Family(_config(config, size), classes, "prompt", kernels, generator=classes[1])


def _grouped(config: str, model: str, kv_heads: int, **settings):
    """A Llama-like family: several query heads share a key-value head."""
    size = {"hidden_size": 32, "num_attention_heads": GROUPED_HEADS, "num_key_value_heads": kv_heads}
    return _decoder(config, model, "ForCausalLM", "ForSequenceClassification", **{**size, **settings})


def _translator(config: str, model: str, *heads: str, reads: str = "pair", **settings):
    """A BART-like family: encoder, decoder and cross-attention."""
    size: dict[str, Any] = {"d_model": WIDTH, "decoder_start_token_id": BOS, "forced_eos_token_id": None}
    for side in ("encoder", "decoder"):
        size |= {f"{side}_layers": LAYERS, f"{side}_attention_heads": HEADS, f"{side}_ffn_dim": 2 * WIDTH}
        size |= {f"{side}_layerdrop": 0.0}
    classes = (f"{model}Model", *(model + head for head in heads))
    return Family(_config(config, {**size, **SIZE, **settings}), classes, reads, generator=classes[1])


def _t5(config: str, model: str, **settings):
    size = {"d_model": WIDTH, "d_kv": 6, "d_ff": 2 * WIDTH, "num_layers": LAYERS, "num_heads": HEADS}
    size |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
    size |= {"vocab_size": VOCAB, "decoder_start_token_id": PAD, "num_labels": LABELS, **TOKENS, **settings}
    classes = (f"{model}Model", f"{model}ForConditionalGeneration", f"{model}EncoderModel")
    return Family(_config(config, size), classes, "pair", generator=classes[1])


def _image(config: str, model: str):
    size = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    size |= {"intermediate_size": 2 * WIDTH, "image_size": 12, "patch_size": 4, "num_labels": LABELS}
    return Family(_config(config, size), (f"{model}Model", f"{model}ForImageClassification"), "image")


def _clip():
    tower = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    tower |= {"intermediate_size": 2 * WIDTH, "projection_dim": 16}
    text = {**tower, "vocab_size": VOCAB, "max_position_embeddings": 32, **TOKENS}
    vision = {**tower, "hidden_size": 32, "image_size": 12, "patch_size": 4}
    both = {"text_config": text, "vision_config": vision, "projection_dim": 16, "num_labels": LABELS}
    config = _config("CLIPConfig", both)
    classes = ("CLIPModel", "CLIPTextModelWithProjection", "CLIPVisionModel", "CLIPForImageClassification")
    return Family(config, classes, "image+text")


def _config(name: str, settings: Mapping[str, Any]) -> Callable[[], PreTrainedConfig]:
    return lambda: getattr(transformers, name)(**settings)


EAGER = ("eager",)
CLASSIFIES, FILLS, SPEAKS = "ForSequenceClassification", "ForMaskedLM", "ForCausalLM"
DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "kernels": EAGER}
DEBERTA |= {"position_buckets": 4, "norm_rel_ebd": "layer_norm", "type_vocab_size": 2}

ZOO: dict[str, Family] = {
    # encoders
    "bert": _encoder("BertConfig", "Bert", CLASSIFIES, FILLS),
    "roberta": _encoder("RobertaConfig", "Roberta", CLASSIFIES, FILLS),
    "xlm-roberta": _encoder("XLMRobertaConfig", "XLMRoberta", CLASSIFIES, FILLS),
    "camembert": _encoder("CamembertConfig", "Camembert", CLASSIFIES, FILLS),
    "electra": _encoder("ElectraConfig", "Electra", CLASSIFIES, "ForPreTraining", embedding_size=16),
    "distilbert": _encoder(
        "DistilBertConfig",
        "DistilBert",
        CLASSIFIES,
        FILLS,
        dim=WIDTH,
        n_layers=LAYERS,
        n_heads=HEADS,
        hidden_dim=2 * WIDTH,
    ),
    "albert": _encoder("AlbertConfig", "Albert", CLASSIFIES, FILLS, embedding_size=16),
    "albert-groups": _encoder(
        "AlbertConfig", "Albert", CLASSIFIES, embedding_size=16, num_hidden_layers=4, num_hidden_groups=2
    ),
    "mpnet": _encoder("MPNetConfig", "MPNet", CLASSIFIES, FILLS, kernels=EAGER),
    "deberta-v2": _encoder("DebertaV2Config", "DebertaV2", CLASSIFIES, FILLS, **DEBERTA),
    "deberta-v2-shared": _encoder("DebertaV2Config", "DebertaV2", CLASSIFIES, **DEBERTA, share_att_key=True),
    "deberta-v2-absolute": _encoder("DebertaV2Config", "DebertaV2", CLASSIFIES, kernels=EAGER),
    # decoders
    "gpt2": _decoder(
        "GPT2Config",
        "GPT2",
        "LMHeadModel",
        CLASSIFIES,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=64,
    ),
    "opt": _decoder("OPTConfig", "OPT", SPEAKS, CLASSIFIES, ffn_dim=2 * WIDTH, word_embed_proj_dim=WIDTH),
    "opt-post-norm": _decoder(
        "OPTConfig", "OPT", SPEAKS, ffn_dim=2 * WIDTH, word_embed_proj_dim=16, do_layer_norm_before=False
    ),
    "gpt-neox": _decoder("GPTNeoXConfig", "GPTNeoX", SPEAKS, CLASSIFIES),
    "bloom": _decoder("BloomConfig", "Bloom", SPEAKS, CLASSIFIES, kernels=EAGER, n_layer=LAYERS, n_head=HEADS),
    "llama": _grouped("LlamaConfig", "Llama", 4),
    "llama-ungrouped": _grouped("LlamaConfig", "Llama", 8, attention_bias=True),
    "mistral": _grouped("MistralConfig", "Mistral", 2, sliding_window=None),
    "mistral-sliding": _grouped("MistralConfig", "Mistral", 2, sliding_window=4),
    "qwen2": _grouped("Qwen2Config", "Qwen2", 2),
    "qwen3": _grouped("Qwen3Config", "Qwen3", 4, head_dim=6),
    "gemma": _grouped("GemmaConfig", "Gemma", 2, head_dim=6),
    "phi3": _grouped("Phi3Config", "Phi3", 4),
    # encoder-decoders
    "bart": _translator("BartConfig", "Bart", "ForConditionalGeneration", CLASSIFIES),
    "mbart": _translator("MBartConfig", "MBart", "ForConditionalGeneration", CLASSIFIES),
    "marian": _translator("MarianConfig", "Marian", "MTModel", scale_embedding=True),
    "m2m100": _translator("M2M100Config", "M2M100", "ForConditionalGeneration"),
    "pegasus": _translator("PegasusConfig", "Pegasus", "ForConditionalGeneration"),
    "t5": _t5("T5Config", "T5"),
    "mt5": _t5("MT5Config", "MT5", tie_word_embeddings=False),
    "whisper": _translator(
        "WhisperConfig",
        "Whisper",
        "ForConditionalGeneration",
        reads="audio",
        num_mel_bins=8,
        max_source_positions=12,
        max_target_positions=32,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    ),
    # vision
    "vit": _image("ViTConfig", "ViT"),
    "deit": _image("DeiTConfig", "DeiT"),
    "clip": _clip(),
}
FAMILIES: list[str] = list(ZOO)


def build(
    name: str, model_class: str | type[PreTrainedModel] | None = None, attn: str | None = None, seed: int = 0
) -> PreTrainedModel:
    """A model of the family, in evaluation mode: by default the bare model, under the family's last kernel.

    The same `seed` gives the same weights under every kernel.
    """
    family = ZOO[name]
    chosen = model_class or family.classes[0]
    cls = getattr(transformers, chosen) if isinstance(chosen, str) else chosen
    config = family.config()
    if cls.config_class is not type(config):  # one tower of CLIP
        config = next(part for part in vars(config).values() if type(part) is cls.config_class)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = cls._from_config(config, attn_implementation=attn or family.kernels[-1])
    randomize(model, seed)
    return model.eval()


def randomize(model: torch.nn.Module, seed: int = 0) -> None:
    """Fill every trainable parameter with seeded noise at which heads matter and outputs stay of order one.

    Sinusoidal tables do not train and keep their values: loading a checkpoint would compute them again.
    """
    generator = torch.Generator().manual_seed(seed)
    tables = {module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter in tables:
            noise *= 0.3
        elif parameter.dim() >= 2:
            noise /= math.sqrt(parameter[0].numel())
            if name.endswith(".q.weight"):  # T5 does not scale its scores; its queries are small instead
                noise /= 2
        else:  # biases start at 0, normalisations at 1 (Gemma's, which add 1 themselves, at 0)
            noise = parameter.detach() + 0.2 * noise
        with torch.no_grad():
            parameter.copy_(noise)


def inputs(
    name: str,
    batch: int = 3,
    length: int = 9,
    padding: str | None = "right",
    seed: int = 0,
    model: PreTrainedModel | None = None,
) -> dict[str, torch.Tensor]:
    """A batch for the family's bare model, its examples padded on that side (None: all of the same length).

    With `model`, only what its `forward` takes: an encoder alone reads no `decoder_input_ids`, and BART's
    classifier makes its own.
    """
    generator = torch.Generator().manual_seed(seed)
    reads = ZOO[name].reads
    config = ZOO[name].config()
    batch_inputs: dict[str, torch.Tensor] = {}
    if "image" in reads:
        vision = getattr(config, "vision_config", config)
        shape = (batch, vision.num_channels, vision.image_size, vision.image_size)
        batch_inputs["pixel_values"] = torch.randn(shape, generator=generator)
    if reads == "audio":
        shape = (batch, config.num_mel_bins, 2 * config.max_source_positions)
        batch_inputs["input_features"] = torch.randn(shape, generator=generator)
    if reads not in ("image", "audio"):
        ends = reads in (
            "pair",
            "image+text",
        )  # a classifying decoder and CLIP's text tower read at the end mark
        batch_inputs |= _text(batch, length, padding, ends, generator)
    if reads in ("pair", "audio"):
        ids = torch.randint(EOS + 1, VOCAB, (batch, max(2, length - 2)), generator=generator)
        ids[:, 0] = config.decoder_start_token_id
        batch_inputs["decoder_input_ids"] = ids
    if model is None:
        return batch_inputs
    taken = set(inspect.signature(model.forward).parameters)
    if type(model).__name__.endswith(CLASSIFIES):
        taken.discard("decoder_input_ids")
    return {key: value for key, value in batch_inputs.items() if key in taken}


def _text(batch: int, length: int, padding: str | None, ends: bool, generator: torch.Generator):
    """Token ids and their mask; the first example is not padded, the others are, by up to half of them."""
    ids = torch.randint(EOS + 1, VOCAB, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(batch):
        missing = 0
        if padding is not None and row:
            missing = int(torch.randint(1, math.ceil(length / 2), (1,), generator=generator))
        if padding == "left":
            ids[row, :missing], mask[row, :missing] = PAD, 0
        elif missing:
            ids[row, -missing:], mask[row, -missing:] = PAD, 0
        if ends:
            ids[row, -1 if padding == "left" else length - missing - 1] = EOS
    return {"input_ids": ids, "attention_mask": mask}


def kernels(name: str) -> tuple[str, ...]:
    """The attention implementations that the family supports on a CPU."""
    return ZOO[name].kernels


def generates(name: str) -> bool:
    """Whether the family has a class that can `generate` (`build_generator` makes it)."""
    return ZOO[name].generator is not None


def build_generator(name: str, attn: str | None = None, seed: int = 0) -> PreTrainedModel:
    """A model of the family that can `generate`."""
    return build(name, ZOO[name].generator, attn, seed)


def prompt(name: str, batch: int = 3, length: int = 9, seed: int = 0) -> dict[str, torch.Tensor]:
    """Inputs for `generate`: padded on the left for a decoder alone, else the encoder's inputs."""
    side = "left" if ZOO[name].reads == "prompt" else "right"
    batch_inputs = inputs(name, batch, length, side, seed)
    batch_inputs.pop("decoder_input_ids", None)
    return batch_inputs


def generate(
    model: PreTrainedModel, name: str, beams: int = 1, new_tokens: int = 7, seed: int = 0, **settings: Any
) -> torch.Tensor:
    """What the model writes after `prompt(name)`: greedily, or with `beams`; with a cache unless told not to.

    Random models like to say one word for ever. Here no pair of words comes twice, so that their text tells
    more of them: zeroing almost any one head changes it.
    """
    settings = {"use_cache": True, "no_repeat_ngram_size": 2, "max_length": None, **settings}
    with torch.no_grad():
        return model.generate(
            **prompt(name, seed=seed), do_sample=False, num_beams=beams, max_new_tokens=new_tokens, **settings
        )


def main_output(output: Any, mask: torch.Tensor | None = None) -> torch.Tensor:
    """The tensor to compare: logits, else the last hidden state; for CLIP both towers' embeddings together.

    With the inputs' attention `mask`, padded positions are set to zero: kernels differ there.
    """
    if "text_embeds" in output and "image_embeds" in output:
        return torch.cat([output["text_embeds"], output["image_embeds"]], dim=-1)
    tensor = output["logits"] if "logits" in output else output["last_hidden_state"]
    if mask is not None and tensor.dim() >= 2 and tensor.shape[:2] == mask.shape:
        tensor = tensor * mask.reshape(*mask.shape, *[1] * (tensor.dim() - 2)).to(tensor.dtype)
    return tensor
