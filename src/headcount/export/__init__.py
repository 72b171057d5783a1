"""Models in other formats, each compared with the model before it is written. A new format is a file here."""

from headcount.export.hub import push_to_hub
from headcount.export.onnx import export_onnx, refuse_name, refuse_target
from headcount.export.onnx_as_model import open_onnx
from headcount.export.onnx_runtime import OnnxModel, part_path, require_onnx

__all__ = [
    "OnnxModel",
    "export_onnx",
    "open_onnx",
    "part_path",
    "push_to_hub",
    "refuse_name",
    "refuse_target",
    "require_onnx",
]
