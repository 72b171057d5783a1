"""Models in other formats, each compared with the model before it is written. A new format is a file here."""

from typing import TYPE_CHECKING, Any

from headcount.export.onnx_runtime import OnnxModel, part_path, refuse_target, require_onnx, standing_in

if TYPE_CHECKING:
    from headcount.export.onnx import export_onnx

__all__ = [
    "OnnxModel",
    "export_onnx",
    "part_path",
    "refuse_target",
    "require_onnx",
    "standing_in",
]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is asked for: a wrong target is refused without."""
    if name != "export_onnx":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headcount.export.onnx import export_onnx

    return export_onnx
