"""Images and sounds are the same from folders, lists of files and data sets; CLIP's image tower is a classifier."""

import csv

import datasets
import numpy as np
import pytest
import torch
from transformers import CLIPConfig, CLIPForImageClassification

import every_task
from headcount import evaluate, load_task
from headcount.cli.model_loading import load_model
from headcount.structure import anatomy


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    path, folder = every_task.every_task("images", tmp_path_factory.mktemp("images"), size=6)
    return (*load_model(str(path)), folder)


@pytest.fixture(scope="module")
def heard(tmp_path_factory):
    path, file = every_task.every_task("speech", tmp_path_factory.mktemp("speech"), size=4)
    return (*load_model(str(path)), file)


def test_images_of_a_data_set_are_those_of_a_folder(seen):
    model, processor, folder = seen
    files = sorted(folder.rglob("*.png"))
    labels = datasets.ClassLabel(names=["dark", "bright"])  # numbered unlike the model's
    table = {"image": list(map(str, files)), "label": [["dark", "bright"].index(file.parent.name) for file in files]}
    data = datasets.Dataset.from_dict(table).cast_column("image", datasets.Image()).cast_column("label", labels)
    one, other = (load_task(None, data, processor, model) for data in (folder, data))
    assert torch.equal(one.batch(range(6)).inputs["pixel_values"], other.batch(range(6)).inputs["pixel_values"])
    assert one.labels == other.labels
    assert one.keys() == other.keys()


def test_a_folder_with_a_list_of_its_images(seen, tmp_path):
    model, processor, folder = seen
    files = sorted(folder.rglob("*.png"))
    with (tmp_path / "metadata.csv").open("w", newline="") as stream:
        lines = csv.writer(stream)
        lines.writerow(["file_name", "label"])
        lines.writerows([file.name, file.parent.name] for file in files)
    for file in files:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    listed, whole = (load_task(None, data, processor, model) for data in (tmp_path, folder))
    assert evaluate(model, listed).score() == evaluate(model, whole).score()


def test_sounds_of_a_data_set_are_those_of_a_list(heard):
    model, processor, file = heard
    rows = [line.split("\t") for line in file.read_text().splitlines()[1:]]
    table = {"audio": [str(file.parent / name) for name, _ in rows], "text": [text for _, text in rows]}
    data = datasets.Dataset.from_dict(table).cast_column("audio", datasets.Audio(decode=False))
    one, other = (load_task(None, data, processor, model) for data in (file, data))
    assert torch.equal(one.batch(range(4)).inputs["input_features"], other.batch(range(4)).inputs["input_features"])
    assert evaluate(model, one).of().tolist() == evaluate(model, other).of().tolist()


def test_clips_image_tower_with_a_head(seen):
    _, processor, folder = seen
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    config = CLIPConfig(
        text_config=size, vision_config={**size, "image_size": 16, "patch_size": 4, "initializer_range": 0.5}
    )
    config.label2id, config.id2label = {"bright": 0, "dark": 1}, {0: "bright", 1: "dark"}
    model = CLIPForImageClassification(config).eval()
    task = load_task(None, folder, processor, model)
    heads = anatomy(model).heads
    masks = [[], [heads[0]], [heads[-1]], [heads[0], heads[-1]]]
    fast, plain = (evaluate(model, task, masks, fast=fast).values for fast in (True, False))
    assert np.allclose(fast, plain, atol=1e-4)
    assert len(np.unique(plain[..., 2].round(6))) > 1
