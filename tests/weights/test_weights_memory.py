"""Peak memory while loading, measured in a new process: the resident plan and one file of the checkpoint at most."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import save_file

from flexinfer.spec.model_spec import ModelSpec, RopeSpec
from flexinfer.weights.names import checkpoint_names

MIB = 2**20
SLACK = 8 * MIB
"""Pages of torch's own code that loading touches first (6.5 MB seen), and the index."""

CHILD = """
import gc, json, pickle, sys
from pathlib import Path
import gguf, torch
torch.set_num_threads(1)
from flexinfer.host import reset_rss_peak, rss_bytes, rss_peak_bytes
from flexinfer.weights import gguf_reader, load_weights, safetensors_reader, torch_bin

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

for name, folder, spec in pickle.loads(sys.stdin.buffer.read()):
    gc.collect()
    before, anonymous_before = rss_bytes(), anonymous()
    assert reset_rss_peak()
    store = load_weights(folder, spec)
    print(json.dumps([name, rss_peak_bytes() - before, anonymous() - anonymous_before]))
    store.close()
    del store
"""


def spec_in(dtype: str) -> ModelSpec:
    return ModelSpec(
        name="middling", family="llama", hidden_size=512, num_layers=2, num_heads=8, num_kv_heads=8, head_dim=64,
        ffn_size=2048, vocab_size=10240, max_positions=64, weight_dtype=dtype, activation="silu", gated_mlp=True,
        norm="rms", norm_eps=1e-6, rope=RopeSpec(),
    )  # fmt: skip


SPEC = spec_in("float32")
RESIDENT = {"float32": SPEC.total_bytes, "bfloat16": SPEC.total_bytes // 2}
LARGEST = SPEC.block_bytes("embed")


def random_state() -> dict[str, torch.Tensor]:
    shapes = {(b, t.name): t.shape for b in ("embed", "attention", "mlp", "head") for t in SPEC.block_tensors(b)}
    return {
        name: torch.randn(shapes[block, canonical])
        for (_, block, canonical), name in checkpoint_names(SPEC, "hf").items()
    }


def write_shards(state: dict[str, torch.Tensor], folder: Path, kind: str, save: Callable) -> None:
    """A shard for each layer, one for the embedding and one for the head."""
    folder.mkdir()
    stem, suffix = kind.split(".")
    weight_map = {}
    for number, part in enumerate(("layers.0.", "layers.1.", "embed", "norm.weight", "lm_head"), 1):
        held = {n: v for n, v in state.items() if part in n and (part != "norm.weight" or n == "model.norm.weight")}
        file = f"{stem}-{number:05d}-of-00005.{suffix}"
        save(held, folder / file)
        weight_map.update(dict.fromkeys(held, file))
    assert set(weight_map) == set(state)
    (folder / f"{kind}.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_gguf(state: dict[str, torch.Tensor], folder: Path) -> None:
    folder.mkdir()
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama")
    theirs = checkpoint_names(SPEC, "hf")
    for place, name in checkpoint_names(SPEC, "gguf").items():
        values = state[theirs[place]].numpy()
        kind = gguf.GGMLQuantizationType.Q8_0 if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def growth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, int]]:
    """Case -> (peak of resident memory above what was there before, growth of anonymous memory that stays)."""
    import pickle

    root, state = tmp_path_factory.mktemp("memory"), random_state()
    write_shards(state, root / "safetensors", "model.safetensors", save_file)
    write_shards(state, root / "torch", "pytorch_model.bin", torch.save)
    (root / "single").mkdir()
    save_file(state, root / "single" / "model.safetensors")
    write_gguf(state, root / "gguf")
    cases = [(f"{f} {d}", root / f, spec_in(d)) for f in ("safetensors", "torch") for d in RESIDENT]
    cases += [
        ("single bfloat16", root / "single", spec_in("bfloat16")),
        ("gguf bfloat16", root / "gguf", spec_in("bfloat16")),
    ]
    done = subprocess.run([sys.executable, "-c", CHILD], input=pickle.dumps(cases), capture_output=True, check=True)
    return {name: (peak, anonymous) for name, peak, anonymous in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("format", ["safetensors", "torch"])
def test_kept_tensors_are_not_copied(growth: dict[str, tuple[int, int]], format: str) -> None:
    peak, anonymous = growth[f"{format} float32"]
    assert peak <= RESIDENT["float32"] + SLACK
    assert anonymous < MIB


@pytest.mark.parametrize("format", ["safetensors", "torch"])
def test_converted_tensors_and_one_shard(growth: dict[str, tuple[int, int]], format: str) -> None:
    peak, _ = growth[f"{format} bfloat16"]
    assert peak <= RESIDENT["bfloat16"] + LARGEST + SLACK


def test_one_large_file_is_given_back_while_it_is_converted(growth: dict[str, tuple[int, int]]) -> None:
    peak, _ = growth["single bfloat16"]
    assert peak <= RESIDENT["bfloat16"] + LARGEST + SLACK < SPEC.total_bytes


def test_quantized_blocks_are_expanded_a_few_rows_at_a_time(growth: dict[str, tuple[int, int]]) -> None:
    peak, _ = growth["gguf bfloat16"]
    assert peak <= RESIDENT["bfloat16"] + LARGEST * 34 // 128 + SLACK + 8 * MIB
