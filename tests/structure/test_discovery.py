"""`anatomy`: sites, their order and names, and what is refused."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

import zoo
from headcount import Head, HeadcountError, UnsupportedModel, anatomy, load, masked, remove, save
from headcount.structure import FAMILIES
from oracle import off_by, run


@pytest.fixture(scope="module")
def bert():
    return zoo.build("bert")


@pytest.fixture(scope="module")
def marian():
    return zoo.build("marian")


def test_sites_come_by_kind_and_layer(marian):
    found = anatomy(marian)
    assert found.kinds == ("encoder", "decoder", "cross")
    expected = [f"{kind}.{layer}" for kind in found.kinds for layer in range(zoo.LAYERS)]
    assert [site.name for site in found.sites] == expected
    assert found.heads[0] == Head("encoder", 0, 0)
    assert found.index(Head("cross", 2, 3)) == len(found.heads) - 1
    assert [head for site in found.sites for head in site.heads] == list(found.heads)


def test_a_site_says_what_it_is_made_of():
    site = anatomy(zoo.build("llama", "LlamaForCausalLM")).site("decoder.1")
    assert site.path == "model.layers.1.self_attn"
    assert (site.head_dim, site.original, site.group, site.kv_kept) == (4, 8, 2, (0, 1, 2, 3))
    assert [part.path for part, _ in site.inputs] == ["q_proj", "k_proj", "v_proj"]
    assert site.output is site.module.o_proj
    assert site.block.self_attn is site.module
    assert anatomy(zoo.build("t5")).site(Head("cross", 2, 0)).block.layer[1].EncDecAttention.is_decoder


def test_clip_has_two_towers():
    both = anatomy(zoo.build("clip"))
    assert both.kinds == ("text", "vision")
    assert both.site("vision.0").head_dim == 8
    assert both.site("text.0").head_dim == 6
    assert anatomy(zoo.build("clip", "CLIPVisionModel")).kinds == ("vision",)


def test_albert_names_a_shared_site_by_its_first_layer():
    one, two = anatomy(zoo.build("albert")), anatomy(zoo.build("albert-groups"))
    assert [(site.name, site.also_layers) for site in one.sites] == [("encoder.0", (1, 2))]
    assert [(site.name, site.also_layers) for site in two.sites] == [("encoder.0", (1,)), ("encoder.2", (3,))]
    with pytest.raises(HeadcountError, match=r"layer 3 .* layer 2.*encoder\.2\.1"):
        two.check("encoder.3.1")


def test_albert_with_several_inner_layers_names_each():
    config = zoo.ZOO["albert"].config()
    config.inner_group_num = 2
    model = transformers.AlbertModel(config).eval()
    assert [(site.name, site.also_layers) for site in anatomy(model).sites] == [
        ("encoder.0", (2, 4)),
        ("encoder.1", (3, 5)),
    ]


def test_cross_attention_of_encoders_and_gpt2():
    config = zoo.ZOO["bert"].config()
    config.is_decoder = config.add_cross_attention = True
    assert anatomy(transformers.BertModel(config)).kinds == ("decoder", "cross")
    config = zoo.ZOO["gpt2"].config()
    config.add_cross_attention = True
    assert anatomy(transformers.GPT2Model(config)).kinds == ("decoder", "cross")


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ("encoder.0.4", r"encoder\.0\.4: encoder\.0 .*0-3"),
        ("encoder.3.0", r"encoder\.3\.0: .*layers.* 0-2"),
        ("decoder.0.0", r"no 'decoder'.*encoder"),
        ("encoder.0.1,encoder.0.1", r"encoder\.0\.1 .*twice"),
        ("encoder0", r"'encoder0'.*kind\.layer\.index"),
    ],
)
def test_heads_that_are_not_there(bert, head, says):
    for refuse in (anatomy(bert).check, lambda heads: remove(bert, heads)):
        with pytest.raises(HeadcountError, match=says):
            refuse(head)
    with pytest.raises(HeadcountError, match=says), masked(bert, off=head):
        pass


def test_a_removed_head_is_said_to_be_removed(bert):
    smaller = remove(bert, "encoder.1.0,encoder.1.2")
    with pytest.raises(HeadcountError, match=r"encoder\.1\.2 .*removed.* 1, 3 left"):
        remove(smaller, "encoder.1.2")
    with pytest.raises(HeadcountError, match=r"encoder\.1\.1 .*removed.* none left"):
        anatomy(remove(smaller, "encoder.1.1,encoder.1.3")).check("encoder.1.1")


def test_an_unknown_site_gets_a_suggestion(bert):
    with pytest.raises(HeadcountError, match=r"'encodr\.1'.*'encoder\.1'"):
        anatomy(bert).site("encodr.1")


def test_only_models_are_looked_at():
    with pytest.raises(HeadcountError, match="str"):
        anatomy("bert-base-uncased")


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)


class StrangeAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.toquery, self.tokey = nn.Linear(4, 4), nn.Linear(4, 4)


class Mixed(nn.Module):
    def __init__(self, known):
        super().__init__()
        self.known, self.strange = known, StrangeAttention()


def test_unknown_attention_is_named():
    with pytest.raises(UnsupportedModel) as refused:
        anatomy(Mixer())
    text = str(refused.value)
    assert "Mixer" in text
    assert all(family.name in text for family in FAMILIES)
    assert "CONTRIBUTING.md" in text
    with pytest.raises(UnsupportedModel, match=r"StrangeAttention with toquery, tokey"):
        anatomy(nn.Sequential(StrangeAttention()))


def test_attention_that_would_be_left_out_is_refused(bert):
    """A model that is known only in part would lose heads in silence: it is refused as a whole."""
    with pytest.raises(UnsupportedModel, match=r"StrangeAttention with toquery, tokey"):
        anatomy(Mixed(bert))


def test_bloom_that_bypasses_its_projection_is_refused():
    config = zoo.ZOO["bloom"].config()
    config.slow_but_exact, config.pretraining_tp = True, 2
    model = transformers.BloomModel(config)
    for refused in (lambda: anatomy(model), lambda: remove(model, "decoder.0.0")):
        with pytest.raises(UnsupportedModel, match=r"slow_but_exact and pretraining_tp > 1"):
            refused()
    config.pretraining_tp = 1
    assert len(anatomy(transformers.BloomModel(config)).heads) == 12


def test_a_class_of_the_same_name_from_elsewhere_is_no_family():
    fake = type("BertSelfAttention", (StrangeAttention,), {})
    with pytest.raises(UnsupportedModel, match=r"BertSelfAttention with toquery, tokey"):
        anatomy(nn.Sequential(fake()))


def test_another_family_with_a_class_of_the_same_name():
    """DeBERTa's first version calls its attention as the second does, and has other projections."""
    settings = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 61}
    model = transformers.DebertaModel(transformers.DebertaConfig(**settings))
    with pytest.raises(UnsupportedModel, match=r"DebertaModel.*DisentangledSelfAttention with in_proj"):
        anatomy(model)


def test_models_that_are_put_together_from_two(tmp_path):
    """A BERT that reads and a BERT that writes; an image model that reads and a GPT-2 that writes."""
    text, image, writer = (zoo.ZOO[name].config() for name in ("bert", "vit", "gpt2"))
    pairs = [
        (transformers.EncoderDecoderModel, transformers.EncoderDecoderConfig, text, zoo.ZOO["bert"].config()),
        (transformers.VisionEncoderDecoderModel, transformers.VisionEncoderDecoderConfig, image, writer),
    ]
    for cls, configuration, reads, writes in pairs:
        model = cls(configuration.from_encoder_decoder_configs(reads, writes)).eval()
        zoo.randomize(model)
        assert anatomy(model).kinds == ("encoder", "decoder", "cross")
        heads = ["encoder.0.0", "decoder.1.2", *(f"{kind}.0.{i}" for kind in ("decoder", "cross") for i in range(4))]
        batch = zoo.inputs("bert" if reads is text else "vit")
        batch["decoder_input_ids"] = torch.randint(4, zoo.VOCAB, (3, 5))
        with masked(model, off=heads):
            expected = run(model, batch)
        smaller = remove(model, heads)
        assert off_by(run(smaller, batch), expected) <= 1e-5
        assert torch.equal(run(load(save(smaller, tmp_path / cls.__name__)), batch), run(smaller, batch))


def test_parameters_that_belong_to_heads():
    site = anatomy(zoo.build("llama")).site("decoder.0")
    each = 4 * 32  # head size times hidden size
    assert site.parameters_of([0]) == each * 2 + 2 * each  # alone, it would take its keys and values along
    assert site.parameters_of([0, 1]) == each * 4 + 2 * each
    assert site.parameters_of(site.kept) == sum(p.numel() for p in site.module.parameters())
    assert repr(site) == "<decoder.0: 8 heads of 4, layers.0.self_attn>"


def test_meta_models_have_an_anatomy():
    with torch.device("meta"):
        model = transformers.BertModel(zoo.ZOO["bert"].config())
    assert len(anatomy(model).heads) == 12
