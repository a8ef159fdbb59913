"""What every test relies on: the environment is ours, torch's global settings are restored, the demo model is found.

Set up at import, before any test module can import torch: thread counts are read from the environment only then.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# `python -m pytest` puts the root on sys.path, and its folder "kernels" where transformers looks for another project's.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]

# The emulated machine runs several threads, and each that calls torch gets an OpenMP team of its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
# A developer's own settings and measured profiles must not change what a test sees, nor be changed by it.
KEPT = {"FLEXINFER_DEMO_MODEL", "FLEXINFER_FUZZ", "FLEXINFER_ISA"}
for name in [name for name in os.environ if name.startswith("FLEXINFER_") and name not in KEPT]:
    del os.environ[name]
CACHE = tempfile.mkdtemp(prefix="flexinfer-test-cache-")
os.environ["XDG_CACHE_HOME"] = CACHE

# The same draws every time in `make test`; fresh and many ones in `make test-full`.
settings.register_profile("fixed", deadline=None, max_examples=40, derandomize=True, database=None)
settings.register_profile("fuzz", deadline=None, max_examples=2000)
settings.load_profile("fuzz" if os.environ.get("FLEXINFER_FUZZ") else "fixed")


def pytest_unconfigure() -> None:
    shutil.rmtree(CACHE, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests run in an empty folder: `python -c` puts the current one on the sys.path of every child process."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(before)


@pytest.fixture(autouse=True)
def restored_torch_settings() -> Iterator[None]:
    """Default dtype and thread count are global in torch. Imports torch for no test that does without it."""
    torch = sys.modules.get("torch")
    before = (torch.get_default_dtype(), torch.get_num_threads()) if torch else None
    yield
    if torch and before:
        torch.set_default_dtype(before[0])
        torch.set_num_threads(before[1])


@pytest.fixture
def fake_cuda() -> None:
    """For tests on fake cuda tensors: a build of torch with CUDA asks a driver for them, which has to be there."""
    import torch

    if torch.version.cuda is not None and not torch.cuda.is_available():
        pytest.skip("this torch is built with CUDA and finds no GPU; a CPU build needs none for fake cuda tensors")


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The real model's .gguf file, from FLEXINFER_DEMO_MODEL or .models/; the test is skipped where neither is."""
    named = os.environ.get("FLEXINFER_DEMO_MODEL")
    if named:
        path = Path(named)
        if not path.exists():
            pytest.fail(f"FLEXINFER_DEMO_MODEL names {path}, which does not exist")
        return path
    found = sorted((ROOT / ".models").glob("*.gguf"))
    if not found:
        pytest.skip("the demo model is not fetched: run scripts/fetch_demo_model.py or set FLEXINFER_DEMO_MODEL")
    return found[0]


TEMPLATE = "{% for m in messages %}{{ m['role'] + ':' + m['content'] + ';' }}{% endfor %}assistant:"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of three layers as a folder, with a chat template and a tokenizer of 256 bytes and <end>."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocab = {token: i for i, token in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "<end>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    path = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        eos_token_id=256,
        bos_token_id=None,
    )
    torch.manual_seed(3)
    LlamaForCausalLM(config).save_pretrained(path)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", chat_template=TEMPLATE)
    fast.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def profile_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shipped machine, as one whose CPU was measured with one thread."""
    from flexinfer.estimator import HardwareProfile

    shipped = HardwareProfile.load("a100-icl")
    path = tmp_path_factory.mktemp("profile") / "machine.json"
    replace(shipped, name="machine", cpu=replace(shipped.cpu, threads=1)).save(path)
    return path


@pytest.fixture
def shipped_profile(monkeypatch: pytest.MonkeyPatch, profile_file: Path) -> None:
    """No measuring: a machine that is shipped, with one thread."""
    monkeypatch.setenv("FLEXINFER_PROFILE", str(profile_file))
    monkeypatch.setenv("FLEXINFER_THREADS", "1")
