"""The installed package: one import name, light imports, no module that other projects would take for theirs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def run_python(program: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["kernels", "estimator", "profiles", "scripts", "tests"])
def test_no_folder_of_the_repository_is_a_module(name: str, tmp_path: Path) -> None:
    program = f"import importlib.util as u; import flexinfer; print(u.find_spec({name!r}))"
    spec = run_python(program, tmp_path).strip()
    assert spec == "None" or str(ROOT) not in spec


@pytest.mark.parametrize("name", ["kernels", "estimator"])
def test_nor_is_it_one_in_the_tests_themselves(name: str) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is None or str(ROOT) not in str(spec)


def test_transformers_builds_a_model_beside_our_kernels(tmp_path: Path) -> None:
    program = """
import sys
import flexinfer, flexinfer.kernels, flexinfer.estimator
assert not hasattr(flexinfer.kernels, "__version__")
from transformers import LlamaConfig, LlamaForCausalLM
import torch
config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
LlamaForCausalLM(config)(torch.zeros(1, 3, dtype=torch.long))
print("kernels" in sys.modules)
"""
    assert run_python(program, tmp_path).strip() == "False"


@pytest.mark.parametrize("module", ["flexinfer", "flexinfer.estimator", "flexinfer.planner", "flexinfer.kernels"])
def test_imports_without_torch(module: str, tmp_path: Path) -> None:
    heavy = ("torch", "transformers", "sklearn", "gguf", "safetensors")
    program = f"import sys, {module}; print([m for m in {heavy!r} if m in sys.modules])"
    assert run_python(program, tmp_path).strip() == "[]"


def test_version_is_the_distributions() -> None:
    import flexinfer

    assert importlib.metadata.version("flexinfer") == flexinfer.__version__


def test_the_version_of_an_unknown_attribute_is_an_error() -> None:
    import flexinfer

    with pytest.raises(AttributeError, match="nothing_here"):
        _ = flexinfer.nothing_here
