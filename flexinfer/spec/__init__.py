"""What a model is: sizes, FLOPs and bytes, from a config.json, a GGUF header or a built-in name. No torch."""

from flexinfer.spec.builtin import builtin_names
from flexinfer.spec.load import load_spec
from flexinfer.spec.model_spec import ModelSpec, RopeSpec, TensorSpec
from flexinfer.spec.workload import Workload

__all__ = ["ModelSpec", "RopeSpec", "TensorSpec", "Workload", "builtin_names", "load_spec"]
