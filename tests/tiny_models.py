"""Tiny random models, large enough weights to make predictions differ."""

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
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
