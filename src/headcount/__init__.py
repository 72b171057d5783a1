"""Find out which attention heads a Transformer needs, and let the rest go."""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without importing typing: nothing is imported before it is needed
_WHERE = {
    "Head": "heads",
    "HeadcountError": "errors",
    "UnsupportedModel": "errors",
    "anatomy": "structure",
    "masked": "intervene",
    "edited": "intervene",
    "Replace": "intervene",
    "Scale": "intervene",
    "capture": "intervene",
    "remove": "surgery",
    "save": "surgery",
    "load": "surgery",
    "export_onnx": "export",
    "export_gguf": "export",
    "open_onnx": "export",
    "push_to_hub": "export",
    "Classification": "tasks",
    "Translation": "tasks",
    "LanguageModeling": "tasks",
    "TokenClassification": "tasks",
    "QuestionAnswering": "tasks",
    "MultipleChoice": "tasks",
    "LikeliestEnding": "tasks",
    "Regression": "tasks",
    "Embedding": "tasks",
    "Summarization": "tasks",
    "ImageClassification": "tasks",
    "SpeechRecognition": "tasks",
    "Task": "tasks",
    "load_task": "tasks",
    "unlabeled": "tasks",
    "Outcomes": "evaluation",
    "evaluate": "evaluation",
    "ablate_each": "ablation",
    "ablate_all_but_one": "ablation",
    "compare": "ablation",
    "importance": "scoring",
    "Scores": "scoring",
    "pruning_curve": "pruning",
    "Curve": "pruning",
    "prune": "pruning",
    "compare_models": "pruning",
    "Pruned": "pruning",
    "benchmark": "bench",
    "train_gates": "gates",
    "find_roles": "roles",
    "track": "dynamics",
    "report": "reporting",
    "view": "explore",
}

__version__ = "0.1.0"
__all__ = list(_WHERE)

if TYPE_CHECKING:
    from typing import Any

    from headcount.ablation import ablate_all_but_one as ablate_all_but_one
    from headcount.ablation import ablate_each as ablate_each
    from headcount.ablation import compare as compare
    from headcount.bench import benchmark as benchmark
    from headcount.dynamics import track as track
    from headcount.errors import HeadcountError as HeadcountError
    from headcount.errors import UnsupportedModel as UnsupportedModel
    from headcount.evaluation import Outcomes as Outcomes
    from headcount.evaluation import evaluate as evaluate
    from headcount.explore import view as view
    from headcount.export import export_gguf as export_gguf
    from headcount.export import export_onnx as export_onnx
    from headcount.export import open_onnx as open_onnx
    from headcount.export import push_to_hub as push_to_hub
    from headcount.gates import train_gates as train_gates
    from headcount.heads import Head as Head
    from headcount.intervene import Replace as Replace
    from headcount.intervene import Scale as Scale
    from headcount.intervene import capture as capture
    from headcount.intervene import edited as edited
    from headcount.intervene import masked as masked
    from headcount.pruning import Curve as Curve
    from headcount.pruning import Pruned as Pruned
    from headcount.pruning import compare_models as compare_models
    from headcount.pruning import prune as prune
    from headcount.pruning import pruning_curve as pruning_curve
    from headcount.reporting import report as report
    from headcount.roles import find_roles as find_roles
    from headcount.scoring import Scores as Scores
    from headcount.scoring import importance as importance
    from headcount.structure import anatomy as anatomy
    from headcount.surgery import load as load
    from headcount.surgery import remove as remove
    from headcount.surgery import save as save
    from headcount.tasks import Classification as Classification
    from headcount.tasks import Embedding as Embedding
    from headcount.tasks import ImageClassification as ImageClassification
    from headcount.tasks import LanguageModeling as LanguageModeling
    from headcount.tasks import LikeliestEnding as LikeliestEnding
    from headcount.tasks import MultipleChoice as MultipleChoice
    from headcount.tasks import QuestionAnswering as QuestionAnswering
    from headcount.tasks import Regression as Regression
    from headcount.tasks import SpeechRecognition as SpeechRecognition
    from headcount.tasks import Summarization as Summarization
    from headcount.tasks import Task as Task
    from headcount.tasks import TokenClassification as TokenClassification
    from headcount.tasks import Translation as Translation
    from headcount.tasks import load_task as load_task
    from headcount.tasks import unlabeled as unlabeled


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _WHERE:
        raise AttributeError(f"module 'headcount' has no attribute {name!r}")
    return getattr(importlib.import_module(f"headcount.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*_WHERE, "__version__"])
