"""What is published: the metadata, the citation, and archives that install in an empty environment and work there."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from trove_classifiers import classifiers

import headcount

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

USE = """
import sys, headcount, torch
from transformers import BertConfig, BertForSequenceClassification
from headcount.tasks.classification import toy_classifier
assert headcount.__file__.startswith(sys.prefix), headcount.__file__
model, task = toy_classifier()
scores = headcount.importance(model, task)
smaller = headcount.remove(model, scores.order()[:2])
headcount.save(smaller, "small")
assert len(headcount.anatomy(headcount.load("small")).heads) == 6
headcount.report(scores, "report.html")
print(len(open("report.html").read()) > 10_000)
"""


@pytest.fixture(scope="module")
def project():
    root = Path(__file__).resolve().parent.parent
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_the_same_everywhere(project, repository):
    cited = yaml.safe_load((repository / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["version"] == headcount.__version__ == str(cited["version"])
    assert project["license"] == cited["license"]


def test_the_citation_is_complete_and_names_the_papers_of_the_readme(repository):
    cited = yaml.safe_load((repository / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    readme = (repository / "README.md").read_text(encoding="utf-8")
    for paper in cited["references"]:
        families = [author["family-names"] for author in paper["authors"]]
        assert f"author    = {{{families[0]}, " in readme
        assert f"title     = {{{paper['title']}}}" in readme
        (identifier,) = paper["identifiers"]
        assert f"eprint = {{{identifier['value'].removeprefix('arXiv:')}}}" in readme
    assert len(cited["references"]) == readme.count("@inproceedings")


def test_classifiers_are_known_and_name_the_pythons_that_are_supported(project):
    assert set(project["classifiers"]) <= classifiers
    named = {found[1] for one in project["classifiers"] if (found := re.fullmatch(r".*:: 3\.(\d+)", one))}
    assert min(map(int, named)) == int(project["requires-python"].removeprefix(">=3."))


def test_links_are_of_the_repository(project, repository):
    """No address is made up: each stands in the repository's own pages."""
    known = (repository / "CITATION.cff").read_text(encoding="utf-8")
    known += (repository / "src/headcount/surgery/model_card.py").read_text(encoding="utf-8")
    assert project["urls"]
    assert all(address in known for address in project["urls"].values())


def test_what_is_needed_is_what_is_installed(project):
    for line in project["dependencies"]:
        needed = Requirement(line)
        assert needed.specifier.contains(metadata.version(needed.name), prereleases=True), line


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The source archive, and the wheel that is built from it."""
    root, out = Path(__file__).resolve().parent.parent, tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run([*build, "-t", "sdist"], cwd=root, check=True, capture_output=True)
    (source,) = out.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(out / "source", filter="data")
    (unpacked,) = (out / "source").iterdir()
    subprocess.run([*build, "-t", "wheel"], cwd=unpacked, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    return source, wheel


@pytest.mark.slow
def test_the_archives_hold_everything_and_nothing_else(archives, repository):
    source, wheel = archives
    package = repository / "src" / "headcount"
    parts = [path.relative_to(package.parent).as_posix() for path in package.rglob("*") if path.is_file()]
    needed = {part for part in parts if "__pycache__" not in part}
    assert {"headcount/py.typed", "headcount/reporting/page.css", "headcount/reporting/explorer.js"} <= needed
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in held if not name.startswith("headcount-")} == needed
    assert any(name.endswith("licenses/LICENSE") for name in held)
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CITATION.cff", "pyproject.toml", "docs/report.md", "tests/zoo.py"} <= names
    assert not [name for name in names if re.search(r"(^|/)(\.venv|__pycache__|\.git/|demo-run)", name)]


@pytest.mark.slow
def test_the_wheel_installs_in_an_empty_environment_and_works_there(archives, tmp_path):
    """Its dependencies are lent by this environment, after its own packages; headcount itself is the wheel's."""
    home = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    python = home / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*install, archives[1]], check=True)
    bare = [python, "-c", "import headcount; print(headcount.__version__)"]
    alone = {"PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(bare, cwd=tmp_path, env=alone, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == headcount.__version__
    (site,) = (home / "lib").glob("python*/site-packages")
    lent = [path for path in sys.path if path.endswith("site-packages")]
    (site / "lent.pth").write_text("\n".join(lent))
    done = subprocess.run([python, "-c", USE], cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("True")
    shown = [home / "bin" / "headcount", "inspect", "small", "--json"]
    done = subprocess.run(shown, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"heads": 6' in done.stdout
