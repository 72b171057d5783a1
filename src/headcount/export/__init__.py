"""Models in other formats, each compared with the model before it is written. A new format is a file here."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headcount.export.onnx_runtime import (
    OnnxModel,
    part_path,
    refuse_directory,
    refuse_name,
    refuse_target,
    require_onnx,
)

if TYPE_CHECKING:
    from headcount.export.hub import push_to_hub
    from headcount.export.llama_cpp import export_gguf, refuse_gguf, require_gguf
    from headcount.export.onnx import export_onnx
    from headcount.export.onnx_as_model import open_onnx

# What needs torch is imported when it is asked for: a wrong target is refused without.
HEAVY = {"export_onnx": "onnx", "open_onnx": "onnx_as_model", "push_to_hub": "hub"}
HEAVY |= dict.fromkeys(("export_gguf", "refuse_gguf", "require_gguf"), "llama_cpp")

__all__ = [
    "OnnxModel",
    "export_gguf",
    "export_onnx",
    "open_onnx",
    "part_path",
    "push_to_hub",
    "refuse_directory",
    "refuse_gguf",
    "refuse_name",
    "refuse_target",
    "require_gguf",
    "require_onnx",
]


def __getattr__(name: str) -> Any:
    if name not in HEAVY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HEAVY[name]}"), name)
