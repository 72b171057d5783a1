"""What headcount does behind a model's public interface: in one file, and undone or copied as it should be."""

from __future__ import annotations

import ast
import copy
import itertools
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import headcount
import zoo
from headcount import anatomy, remove
from headcount.structure import Layout, layout_of, makes_sense, pop_view, push_view
from oracle import run

SOURCE = Path(headcount.__file__).parent
OWN = ("self", "cls")
ELSEWHERE = {("tasks/statistics.py", "_extract_corpus_statistics")}  # sacrebleu's


def private_names(source: str) -> set[str]:
    """Private attributes of other objects, and private modules, that a source uses."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id in OWN):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("headcount"):
            found.update(node.module.split("."))
        elif isinstance(node, ast.Constant) and str(node.value).startswith("_scaled_dot_product"):
            found.add(str(node.value))  # torch's kernels, which may be looked up by name
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "setattr"):
            found.update(str(part.value) for part in node.args[1:2] if isinstance(part, ast.Constant))
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def test_private_attributes_of_libraries_are_touched_in_one_file():
    complaints = set()
    for file in SOURCE.rglob("*.py"):
        name = file.relative_to(SOURCE).as_posix()
        if name != "structure/transformers_internals.py":
            complaints |= {(name, used) for used in private_names(file.read_text(encoding="utf-8"))}
    assert complaints == ELSEWHERE


@pytest.mark.parametrize(
    "source",
    [
        "model.config._name_or_path",
        "from torch.utils._pytree import tree_map",
        'getattr(model, "_hf_hook", None)',
        'KERNELS = ("_scaled_dot_product_flash_attention_for_cpu",)',
    ],
)
def test_the_rule_complains_when_it_should(source):
    assert private_names(source)
    assert not private_names("self._kept, cls._made, module.__dict__")


# ------------------------------------------------------------------------------------------------ configuration views


@pytest.mark.parametrize("order", itertools.permutations(("a", "b", "c")))
def test_views_are_popped_in_any_order(order):
    config = SimpleNamespace(a=0, b=0, c=0, other=0)
    module = SimpleNamespace(config=config)
    for name in ("a", "b", "c"):
        push_view(module, name, **{name: 1})
    left = {"a", "b", "c"}
    for name in order:
        pop_view(module, name)
        left.remove(name)
        assert {key for key in "abc" if getattr(module.config, key)} == left
    assert module.config is config


def test_views_of_one_name_nest():
    module = SimpleNamespace(config=SimpleNamespace(heads=8))
    push_view(module, "same", heads=4)
    before = module.config
    push_view(module, "same", heads=2)
    assert module.config.heads == 2
    pop_view(module, "same")
    assert module.config is before
    pop_view(module, "never pushed")
    assert module.config is before


def test_a_view_reads_and_writes_the_configuration_below():
    config = SimpleNamespace(heads=8, size=4)
    module = SimpleNamespace(config=config)
    push_view(module, "view", heads=2)
    config.size = 5
    assert module.config.size == 5
    module.config.size = 6
    assert config.size == 6


# ---------------------------------------------------------------------------------------------------- layouts, copies


def pruned(name):
    """The last site emptied, two heads of the first one gone."""
    model = zoo.build(name)
    first, *_, last = anatomy(model).sites
    return remove(model, [*first.heads[:1], *first.heads[3:4], *last.heads])


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
@pytest.mark.parametrize("name", ["bert", "llama", "t5", "bloom", "mpnet", "albert-groups", "phi3", "gpt2"])
def test_a_copy_has_the_same_heads_and_its_own_weights(name, way):
    model = pruned(name)
    twin = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
    assert [site.layout for site in anatomy(twin).sites] == [site.layout for site in anatomy(model).sites]
    assert [type(module) for module in twin.modules()] == [type(module) for module in model.modules()]
    batch = zoo.inputs(name)
    expected = run(model, batch)
    with torch.no_grad():
        for site in anatomy(model).sites:  # an emptied site adds the bias of its own model's projection
            if site.output.bias is not None:
                site.output.bias += 1
    assert torch.equal(run(twin, batch), expected)


def test_a_module_remembers_its_layout_and_an_unpruned_one_has_none():
    model = remove(zoo.build("llama"), ["decoder.0.0", "decoder.0.1", "decoder.0.5"])
    layout = layout_of(model.layers[0].self_attn)
    assert (layout.kept, layout.kv_kept, layout.kv_index) == ((2, 3, 4, 6, 7), (1, 2, 3), (0, 0, 1, 2, 2))
    assert not layout.is_even
    assert layout_of(model.layers[1].self_attn) is None
    assert anatomy(model).sites[0].layout == layout


@pytest.mark.parametrize("kept", [(), (0,), (2, 3, 4, 6, 7), tuple(range(8))])
def test_a_record_is_read_as_it_was_written(kept):
    layout = Layout.whole("decoder", 8, group=2).keeping(kept)
    assert Layout.read("decoder", layout.entry()) == layout
    assert makes_sense("decoder.0", layout.entry())
    if kept:
        stock = Layout.read("decoder", layout.entry(built=kept))
        assert stock.built == kept
        assert stock.columns == tuple(range(len(kept)))


# --------------------------------------------------------------------------------------------------- choosing sites


def test_sites_and_heads_of_kinds_and_layers():
    found = anatomy(zoo.build("marian"))
    assert found.sites_of() == found.sites
    assert [site.name for site in found.sites_of(["cross", "encoder"], [2])] == ["encoder.2", "cross.2"]
    assert found.heads_of(["decoder"], range(1)) == found.site("decoder.0").heads
    assert found.sites_of([]) == found.heads_of(layers=[]) == ()
    with pytest.raises(headcount.HeadcountError, match=r"'decodr'.*'decoder'"):
        found.sites_of(["encoder", "decodr"])
    with pytest.raises(headcount.HeadcountError, match=r"layer 3.* 0-2"):
        found.heads_of(layers=[0, 3])
