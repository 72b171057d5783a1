"""The rules of the house, held by reading the source: who imports whom, who prints, what is never used.

Each rule is a function from source text to complaints, so that it can be shown to complain.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headcount
from toy_jobs import JOBS
from walks import files_crossed

# A module imports only from what stands above it, and from its own package.
ORDER = (
    *("errors", "heads", "settings", "files", "model_directory", "structure", "runs", "intervene", "surgery", "export"),
    *(
        "reporting",
    ),  # it reads results as plain JSON, so it needs none of those who measure, and all of them can be shown
    *("stats", "tasks", "engine", "evaluation", "training"),
    *("ablation", "scoring", "bench", "pruning", "gates", "roles", "dynamics"),
    *("explore", "demo", "cli"),
)
PRINTING = {"demo", "cli"}
HEAVY = {"torch", "transformers", "datasets", "numpy", "scipy", "pandas", "sklearn", "typer"}
UNPICKLING = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
NEVER_TRUE = {"trust_remote_code", "allow_pickle"}

SOURCE = Path(__file__).resolve().parent.parent / "src" / "headcount"
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = {".".join(("headcount", *file.relative_to(SOURCE).with_suffix("").parts)) for file in FILES}
BESIDE = sorted(file for name in ("recipes", "benchmarks") for file in (SOURCE.parents[1] / name).rglob("*.py"))


def name_of(file: Path) -> str:
    """`headcount/structure/discovery.py` is `headcount.structure.discovery`."""
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """The entry of `ORDER` that a module belongs to; the package itself is the empty entry."""
    return (module + "..").split(".")[1]


def imports(source: str, module: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """What of headcount the source imports, anywhere in it, as line and full name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".")[: None if is_package else -1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, *filter(None, [node.module])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and called(node).endswith("import_module") and node.args:
            names = [node.args[0].value] if isinstance(node.args[0], ast.Constant) else []
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = [ast.unparse(node)]  # `import headcount` alone reaches everything: see what for
        else:
            continue
        yield from ((node.lineno, name) for name in names if str(name).startswith("headcount."))


def called(call: ast.Call) -> str:
    """The dotted name of what is called, as far as it is one: `torch.load`, `print`."""
    return ast.unparse(call.func) if isinstance(call.func, ast.Name | ast.Attribute) else ""


def order_complaints(source: str, module: str, is_package: bool = False) -> list[str]:
    """Imports that go against `ORDER`."""
    part = part_of(module)
    if part not in ORDER:
        return [f"{module}: no place in the import order; give {part!r} one here and in the design"]
    complaints = []
    for line, target in imports(source, module, is_package):
        other = part_of(target)
        if other not in ORDER:
            if part not in PRINTING and target != "headcount.__version__":
                complaints.append(f"{module}:{line} imports {target}: name the module that defines it")
        elif ORDER.index(other) > ORDER.index(part):
            complaints.append(f"{module}:{line} imports {target}, which stands below it")
    return complaints


def entrance_complaints(source: str, module: str, is_package: bool = False) -> list[str]:
    """Imports from a file inside another package: packages are entered through what they export."""
    complaints = []
    for line, target in imports(source, module, is_package):
        parts = target.split(".")
        known = [".".join(parts[:size]) for size in range(2, len(parts) + 1) if ".".join(parts[:size]) in MODULES]
        inside = known[-1] if known else ""
        if inside.count(".") > 1 and part_of(inside) != part_of(module):
            complaints.append(f"{module}:{line} imports {inside}: import from {'.'.join(inside.split('.')[:2])}")
    return complaints


def print_complaints(source: str, module: str) -> list[str]:
    """Calls that write to the terminal, where only the command line and the demo may."""
    if part_of(module) in PRINTING:
        return []
    writing = {"print", "sys.stdout.write", "sys.stderr.write", "rich.print", "typer.echo", "click.echo"}
    return [
        f"{module}:{node.lineno} calls {called(node)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and called(node) in writing
    ]


def trust_complaints(source: str, module: str) -> list[str]:
    """Whatever could run code out of a file: pickles, `torch.load`, remote code."""
    complaints = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            used = {alias.name.split(".")[0] for alias in node.names} & UNPICKLING
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            used = {base.split(".")[0]} & UNPICKLING
            used |= {f"torch.{alias.name}" for alias in node.names if base == "torch"} & {"torch.load", "torch.save"}
        elif isinstance(node, ast.Attribute):
            used = {ast.unparse(node)} & {"torch.load", "torch.save", "torch.jit.load", "torch.serialization"}
        elif isinstance(node, ast.keyword) and node.arg in NEVER_TRUE:
            used = set() if isinstance(node.value, ast.Constant) and not node.value.value else {node.arg}
        else:
            continue
        complaints += [f"{module}:{getattr(node, 'lineno', '?')} uses {name}" for name in sorted(used)]
    return complaints


def asking_complaints(source: str, module: str) -> list[str]:
    """Calls in which transformers would ask the user whether code of a model may be run: the answer is no."""
    return [
        f"{module}:{node.lineno} calls {called(node)} without trust_remote_code=False"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and re.fullmatch(r"(.*\.)?Auto\w+\.from_pretrained", called(node))
        if "trust_remote_code" not in [keyword.arg for keyword in node.keywords]
    ]


def ray_complaints(source: str, module: str) -> list[str]:
    """Imports of ray anywhere but in its engine: everyone else knows the engine's interface only."""
    if module == "headcount.engine.ray":
        return []
    complaints = []
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        complaints += [f"{module}:{node.lineno} imports {name}" for name in names if name.split(".")[0] == "ray"]
    return complaints


NOUNS = "example|head|neuron|text|row|line|site|cut|unit|column|word|tag"


def plural_complaints(source: str, module: str) -> list[str]:
    """A length before a plural reads "1 heads" when there is one; `counted` writes the noun that fits."""
    found = []
    for text in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.JoinedStr)):
        for before, value, after in zip([None, *text.values], text.values, text.values[1:], strict=False):
            length = isinstance(value, ast.FormattedValue) and isinstance(value.value, ast.Call)
            if not (length and called(value.value) in ("len", "numbers.count") and isinstance(after, ast.Constant)):
                continue
            of = isinstance(before, ast.Constant) and str(before.value).endswith(("of ", "all "))  # 1 of 12 heads
            if not of and re.match(
                r" (example|head|neuron|text|row|line|site|cut|unit|column|word|tag)s\b", after.value
            ):
                found.append(f"{module}:{text.lineno} counts without its noun: use counted")
    return found


def place_complaints(text: str, file: str) -> list[str]:
    """Paths of somebody's machine and addresses of somebody's registry."""
    machine = r"(?<![\w.~$})*-])(?:/(?:home|root|Users|work|tmp|opt|mnt|srv)/[\w.]|[A-Z]:\\Users\\)"
    registry = r"(?i:index-url|find-links|/simple/|pythonhosted\.org|download\.pytorch\.org|file://)"
    return [
        f"{file}:{number}: {line.strip()[:120]}"
        for number, line in enumerate(text.splitlines(), start=1)
        if re.search(machine, line) or re.search(registry, line)
    ]


def tracked(repository: Path) -> list[Path]:
    """Files that are, or would be, in the repository."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    answer = subprocess.run(listing, cwd=repository, capture_output=True, text=True, check=False)
    if answer.returncode:
        pytest.skip("not a git checkout")
    return [path for line in answer.stdout.splitlines() if (path := repository / line).is_file()]


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_module_keeps_the_rules(file):
    source, module = file.read_text(encoding="utf-8"), name_of(file)
    complaints = print_complaints(source, module) + trust_complaints(source, module)
    complaints += asking_complaints(source, module) + ray_complaints(source, module)
    complaints += plural_complaints(source, module)
    if module not in ("headcount", "headcount.__main__"):  # the package itself is lazy: see below
        complaints += order_complaints(source, module, file.name == "__init__.py")
        complaints += entrance_complaints(source, module, file.name == "__init__.py")
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("file", BESIDE, ids=lambda file: file.relative_to(SOURCE.parents[1]).as_posix())
def test_recipes_and_benchmarks_unpickle_nothing_and_run_no_code_of_a_model(file):
    source = file.read_text(encoding="utf-8")
    complaints = trust_complaints(source, file.name)
    complaints += asking_complaints(source, file.name) if "recipes" in file.parts else []
    assert not complaints, "\n".join(complaints)


def test_the_rules_were_applied_to_something():
    assert {"train_translator.py", "speed.py", "mutate.py"} <= {file.name for file in BESIDE}
    assert {"headcount", "headcount.heads", "headcount.structure"} <= {name_of(file) for file in FILES}


@pytest.mark.parametrize("package", ["headcount", "headcount.cli"])
def test_importing_headcount_is_light(package):
    code = f"import {package}, sys; print(*sorted(name for name in sys.modules if '.' not in name))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "headcount" in loaded
    assert not HEAVY & set(loaded)


def test_no_module_has_the_name_of_something_exported():
    """`from headcount.pruning import prune` must not be able to mean a module."""
    taken = {f"headcount.{name}" for name in headcount.__all__}
    for file in FILES:
        if file.name == "__init__.py" and file.parent != SOURCE:
            tree = ast.parse(file.read_text(encoding="utf-8"))
            exported = [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
            taken |= {f"{name_of(file)}.{name}" for name in exported}
    clashes = taken & MODULES
    assert not clashes


def test_no_two_classes_have_the_same_name():
    places: dict[str, list[str]] = {}
    for file in FILES:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(name_of(file))
    assert not {name: where for name, where in places.items() if len(where) > 1}


MOST_FILES, ONE_IMPORTER, MOST_LINES = 160, 30, 400
# Where the same name stands for the same thing: a function and its command, a result and its section of the report.
SAME_THING = {
    "bench": "its command",
    "curve": "its command",
    "demo": "its command",
    "explore": "its command",
    "export": "its command",
    "gates": "its command",
    "heads": "their section of the report",
    "pipeline": "the whole job, of pruning and of gates",
    "pruning": "its section of the report",
    "roles": "its command",
    "runs": "as the report reads them",
    "training": "its sections of the report",
    "translation": "the task and its demo",
}
# What transformers may break at its next release stands in one file, however long.
LONG = {"headcount.structure.transformers_internals"}


def importers() -> dict[str, set[str]]:
    """Which modules import each module; whoever imports a name from a package imports the file that defines it."""
    read = {name_of(file): (file.read_text(encoding="utf-8"), file.name == "__init__.py") for file in FILES}
    targets = {name: {target for _, target in imports(text, name, package)} for name, (text, package) in read.items()}
    packages = [name for name, (_, package) in read.items() if package and name != "headcount"]
    defined_in = {
        f"{package}.{target.rpartition('.')[2]}": target.rpartition(".")[0]
        for package in packages
        for target in targets[package]
    }
    found: dict[str, set[str]] = {}
    for name in set(targets) - set(packages):
        for target in targets[name]:
            module = target if target in MODULES else defined_in.get(target, target.rpartition(".")[0])
            if module in MODULES and module not in packages and module != name:
                found.setdefault(module, set()).add(name)
    return found


def test_few_modules_serve_one_other_alone():
    """A file that one other file imports may be half of it.

    Families, commands and the demo's stories are loaded by name, so no module imports them, and they do not count.
    """
    alone = [module for module, users in importers().items() if len(users) == 1]
    assert "headcount.engine.ray" in alone
    assert len(alone) <= ONE_IMPORTER, "\n".join(sorted(alone))


def test_no_two_modules_have_the_same_name_for_different_things():
    stems = [file.stem for file in FILES if file.stem != "__init__"]
    stems += [file.parent.name for file in FILES if file.stem == "__init__"]
    assert {stem for stem in stems if stems.count(stem) > 1} == set(SAME_THING)


def test_the_house_has_few_rooms():
    assert 100 < len(FILES) <= MOST_FILES


def test_no_file_is_longer_than_a_concept():
    sizes = {name_of(file): len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    assert {module for module, size in sizes.items() if size > MOST_LINES} == LONG


def test_no_module_is_called_utils():
    assert not [name_of(file) for file in FILES if re.fullmatch(r"_?(utils?|misc|common)", file.stem)]


def test_no_tracked_file_names_a_machine_or_a_registry(repository):
    complaints = []
    for path in tracked(repository):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if path != Path(__file__).resolve():  # the rule itself has to name them
            complaints += place_complaints(text, path.relative_to(repository).as_posix())
    assert not complaints, "\n".join(complaints)


def test_the_lock_pins_everything_exactly(repository):
    lines = (repository / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert sum(pin.startswith("torch==") for pin in pins) == 1
    assert not [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin)]


@pytest.mark.parametrize(
    ("source", "module", "complains"),
    [
        ("from headcount.intervene import masked", "headcount.surgery.removal", False),
        ("from headcount.surgery import carve", "headcount.surgery.removal", False),
        ("from headcount.surgery import remove", "headcount.intervene.editing", True),
        ("def later():\n    import headcount.cli", "headcount.intervene.editing", True),
        ("if TYPE_CHECKING:\n    from headcount.explore import view", "headcount.stats", True),
        ("from ..explore import view", "headcount.tasks.task", True),
        ("from . import data", "headcount.tasks.task", False),
        ("from .. import cli", "headcount.tasks.task", True),
        ("importlib.import_module('headcount.cli')", "headcount.heads", True),
        ("from headcount import masked", "headcount.surgery.removal", True),
        ("from headcount import masked", "headcount.cli.prune", False),
        ("import headcount\nheadcount.prune()", "headcount.stats", True),
        ("import headcount\nheadcount.__version__", "headcount.stats", False),
        ("import torch", "headcount.structure.discovery", False),
        ("", "headcount.cupboard", True),
    ],
)
def test_the_import_order_rule_complains_when_it_should(source, module, complains):
    assert bool(order_complaints(source, module)) is complains


def test_the_entrance_rule_complains_when_it_should():
    inside = "from headcount.pruning.search import cuts"
    assert entrance_complaints(inside, "headcount.cli.prune")
    assert not entrance_complaints(inside, "headcount.pruning.curve")
    assert not entrance_complaints("from headcount.pruning import prune", "headcount.cli.prune")
    assert entrance_complaints("from headcount.engine.ray import Ray", "headcount.cli.options")


def test_relative_imports_in_a_package_start_from_the_package():
    assert not order_complaints("from .discovery import anatomy", "headcount.structure", is_package=True)
    assert order_complaints("from ..cli import main", "headcount.structure.families", is_package=True) == []
    assert order_complaints("from ...cli import main", "headcount.structure.families", is_package=True)


def test_the_printing_rule_complains_when_it_should():
    assert print_complaints("def f():\n    print(1)", "headcount.stats")
    assert print_complaints("import sys\nsys.stdout.write('')", "headcount.tasks.task")
    assert not print_complaints("print(1)", "headcount.cli.inspect")
    assert not print_complaints("pprint(1); self.print()", "headcount.stats")


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "import torch\ntorch.load(file, weights_only=True)",
        "from torch import load",
        "load(name, trust_remote_code=True)",
        "load(name, trust_remote_code=flag)",
        "numpy.load(file, allow_pickle=True)",
    ],
)
def test_the_trust_rule_complains_when_it_should(source):
    assert trust_complaints(source, "headcount.surgery.saving")
    assert not trust_complaints("load(name, trust_remote_code=False)", "headcount.surgery.saving")


@pytest.mark.parametrize(
    "source", ["import ray", "import ray.util as u", "def f():\n    from ray.exceptions import RayError"]
)
def test_the_ray_rule_complains_when_it_should(source):
    assert ray_complaints(source, "headcount.engine.shards")
    assert not ray_complaints(source, "headcount.engine.ray")
    assert not ray_complaints("import rayon\nfrom .ray import x", "headcount.engine.shards")


def test_the_plural_rule_complains_when_it_should():
    assert plural_complaints('f"{len(heads)} heads"', "headcount.x")
    assert plural_complaints('f"on {numbers.count(n)} examples each"', "headcount.x")
    assert not plural_complaints('f"{len(some)} of {len(every)} heads"', "headcount.x")
    assert not plural_complaints("""f"{counted(len(heads), 'head')} left\"""", "headcount.x")


def test_the_asking_rule_complains_when_it_should():
    assert asking_complaints("AutoTokenizer.from_pretrained(name)", "headcount.cli.model_loading")
    assert asking_complaints("transformers.AutoModel.from_pretrained(name, dtype=None)", "headcount.cli.model_loading")
    assert not asking_complaints(
        "AutoModel.from_pretrained(name, trust_remote_code=False)", "headcount.cli.model_loading"
    )
    assert not asking_complaints("BertModel.from_pretrained(name)", "headcount.cli.model_loading")


@pytest.mark.parametrize(
    ("line", "complains"),
    [
        ("see /home/somebody/model", True),
        ("path = '/tmp/model'", True),
        (r"C:\Users\somebody", True),
        ("--extra-index-url https://example.org/wheels", True),
        ("#!/usr/bin/env bash", False),
        ("headcount inspect runs/tmp/model", False),
        ("a share of the work/time", False),
    ],
)
def test_the_place_rule_complains_when_it_should(line, complains):
    assert bool(place_complaints(line, "made-up")) is complains


def test_the_walks_in_the_documentation_are_the_files_that_run(repository):
    """Both walks of docs/architecture.md, traced on a tiny classifier: no file is missing, none is made up."""
    build, make = JOBS["classifier"]
    model, (train, dev, test) = build(), (make(start, 24) for start in (0, 1, 2))
    page = (repository / "docs" / "architecture.md").read_text(encoding="utf-8")
    prune, ablate_each = headcount.prune, headcount.ablate_each
    calls = {
        "prune": (40, lambda: prune(model, train, dev, test, max_drop=50)),
        "ablate": (25, lambda: ablate_each(model, dev)),
    }
    for name, (most, call) in calls.items():
        _, _, section = page.partition(f"## A walk through `{name}`")
        told = re.findall(r"[\w/]+\.py", section.split("```")[1])
        assert len(told) == len(set(told)) <= most
        assert set(told) == set(files_crossed(call))
