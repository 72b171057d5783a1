"""Tiny random models, large enough weights to make predictions differ."""

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
)


def bert(cls=BertForSequenceClassification, **changes):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    settings = {**sizes, "vocab_size": 30, "max_position_embeddings": 16, "initializer_range": 0.5, **changes}
    return cls(BertConfig(**settings)).eval()


def masked_bert(**changes):
    return bert(BertForMaskedLM, **changes)


def gpt(cls=GPT2LMHeadModel, **changes):
    torch.manual_seed(0)
    settings = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 30, "n_positions": 16, **changes}
    return cls(GPT2Config(initializer_range=0.5, bos_token_id=1, eos_token_id=2, **settings)).eval()


def gpt_classifier(**changes):
    return gpt(GPT2ForSequenceClassification, **changes)


def marian(**changes):
    torch.manual_seed(0)
    layers = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64}
    ids = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    settings = {**layers, **sizes, **ids, "vocab_size": 30, "init_std": 0.5, **changes}
    return MarianMTModel(MarianConfig(**settings)).eval()


def llama_like(kind):
    """A Llama, Mistral, Qwen2 or Qwen3 with heads of 32 numbers, as q8_0 needs."""
    torch.manual_seed(0)
    name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[kind]
    size = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    size |= {"head_dim": 32, "intermediate_size": 96, "vocab_size": 320, "max_position_embeddings": 128}
    config = getattr(transformers, f"{name}Config")(**size, initializer_range=0.1, bos_token_id=0, eos_token_id=1)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def byte_tokenizer():
    """A byte-level BPE tokenizer of 300 tokens, as Llama's and Qwen's are."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    words.train_from_iterator(["The quick brown fox jumps over the lazy dog in the year 1815"], special)
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>")
