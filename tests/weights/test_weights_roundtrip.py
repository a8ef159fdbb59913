"""What transformers saves comes back bit for bit, in every format, family and type, each tensor once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from flexinfer.spec.model_spec import ModelSpec
from flexinfer.weights import WeightStore, load_weights

FAMILIES = ["llama", "llama-biased", "mistral", "qwen2", "qwen3", "opt", "opt-untied", "opt-350m"]


def assert_holds(store: WeightStore, tiny, dtype: torch.dtype = torch.float32) -> None:
    for (layer, block, name), wanted in tiny.expected(dtype).items():
        got = store.block(layer, block)[name]
        assert torch.equal(got, wanted), (layer, block, name)
        assert got.dtype == dtype and got.is_contiguous()


@pytest.mark.parametrize("family", FAMILIES)
def test_safetensors_of_every_family(tiny: Callable, tmp_path: Path, family: str) -> None:
    model = tiny(family)
    model.model.save_pretrained(tmp_path)
    store = load_weights(tmp_path, model.spec)
    assert_holds(store, model)
    assert store.nbytes == model.spec.total_bytes


@pytest.mark.parametrize("family", ["llama", "opt-350m"])
@pytest.mark.parametrize("shards,zipped", [(1, True), (1, False), (3, True)])
def test_torch_files(
    tiny: Callable, torch_saver: Callable, tmp_path: Path, family: str, shards: int, zipped: bool
) -> None:
    model = tiny(family)
    torch_saver(model.model.state_dict(), tmp_path, shards, zipped)
    assert_holds(load_weights(tmp_path, model.spec), model)


def test_shards_of_safetensors(tiny: Callable, sharded: Path) -> None:
    assert_holds(load_weights(sharded, tiny("llama").spec), tiny("llama"))


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("wanted", ["float32", "float16", "bfloat16"])
def test_types_are_converted_tensor_by_tensor(
    tiny: Callable, torch_saver: Callable, tmp_path: Path, stored: torch.dtype, wanted: str
) -> None:
    model = tiny("qwen3")
    spec = replace(model.spec, weight_dtype=wanted)
    state = {name: value.to(stored) for name, value in model.model.state_dict().items() if name != "lm_head.weight"}
    (tmp_path / "st").mkdir()
    (tmp_path / "bin").mkdir()
    save_file(state, tmp_path / "st" / "model.safetensors")
    torch_saver(state, tmp_path / "bin")
    q = state["model.layers.1.self_attn.q_proj.weight"].to(getattr(torch, wanted))
    for folder in ("st", "bin"):
        store = load_weights(tmp_path / folder, spec)
        assert torch.equal(store.block(1, "attention")["q.weight"], q)
        assert store.nbytes == spec.total_bytes


def test_kept_tensors_are_views_of_one_mapping(tiny: Callable, tmp_path: Path) -> None:
    model = tiny("llama")
    model.model.save_pretrained(tmp_path)
    store = load_weights(tmp_path, model.spec)
    tensors = [t for layer, block in model.spec.blocks() for t in store.block(layer, block).values()]
    starts = [t.data_ptr() for t in tensors]
    mapping = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    assert len(mapping) == 1
    first, last = (int(part, 16) for part in mapping[0].split()[0].split("-"))
    assert all(first <= start < last for start in starts)
    del tensors
    store.close()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_network_file_system_is_read_in_order(
    tiny: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flexinfer.host import FileSystem
    from flexinfer.weights import source

    model = tiny("llama")
    model.model.save_pretrained(tmp_path)
    network = FileSystem("nfs4", "/", network=True, in_memory=False)
    monkeypatch.setattr(source, "file_system", lambda file: network)
    store = load_weights(tmp_path, model.spec)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert_holds(store, model)


@pytest.mark.parametrize("family", ["opt", "qwen3", "opt-350m"])
def test_a_tied_head_is_the_embedding(tiny: Callable, tmp_path: Path, family: str) -> None:
    model = tiny(family)
    model.model.save_pretrained(tmp_path)
    store = load_weights(tmp_path, model.spec)
    assert store.block(None, "head")["out.weight"] is store.block(None, "embed")["tokens.weight"]


def test_a_tied_head_may_be_stored_twice_if_equal(tiny: Callable, tmp_path: Path) -> None:
    model = tiny("qwen3")
    state = {name: value.clone() for name, value in model.model.state_dict().items()}
    assert "lm_head.weight" in state
    save_file(state, tmp_path / "model.safetensors")
    store = load_weights(tmp_path, model.spec)
    assert store.nbytes == model.spec.total_bytes


@pytest.mark.parametrize(
    "family,outer,inner", [("llama", "model.", ""), ("opt", "model.", ""), ("opt", "model.decoder.", "")]
)
def test_names_without_the_outer_prefix(tiny: Callable, tmp_path: Path, family: str, outer: str, inner: str) -> None:
    model = tiny(family)
    state = {
        inner + name.removeprefix(outer) if name.startswith(outer) else name: value.clone()
        for name, value in model.model.state_dict().items()
    }
    save_file(state, tmp_path / "model.safetensors")
    assert_holds(load_weights(tmp_path, model.spec), model)


def test_old_opt_name_of_the_final_norm(tiny: Callable, tmp_path: Path) -> None:
    model = tiny("opt")
    state = {
        name.replace("decoder.final_layer_norm", "decoder.layer_norm"): value.clone()
        for name, value in model.model.state_dict().items()
    }
    state["decoder.version"] = torch.tensor([1.0])
    save_file(state, tmp_path / "model.safetensors")
    assert_holds(load_weights(tmp_path, model.spec), model)


def test_buffers_that_are_no_parameters_are_allowed(tiny: Callable, tmp_path: Path) -> None:
    model = tiny("llama")
    state = {name: value.clone() for name, value in model.model.state_dict().items()}
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.full((4,), float("nan"))
    state["model.layers.0.self_attn.masked_bias"] = torch.tensor(-1e9)
    state["model.embeddings.position_ids"] = torch.arange(4)
    save_file(state, tmp_path / "model.safetensors")
    assert_holds(load_weights(tmp_path, model.spec), model)


def test_misaligned_data_is_read_rightly(tiny: Callable, tmp_path: Path) -> None:
    """The format does not promise alignment: lengthen the header by one space."""
    model = tiny("llama")
    model.model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    file.write_bytes((length + 1).to_bytes(8, "little") + data[8 : 8 + length] + b" " + data[8 + length :])
    store = load_weights(tmp_path, model.spec)
    assert_holds(store, model)
    tensors = [t for layer, block in model.spec.blocks() for t in store.block(layer, block).values()]
    assert all(t.data_ptr() % t.element_size() == 0 for t in tensors), "kernels get aligned numbers"


def test_progress_reaches_the_total_once(tiny: Callable, sharded: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    load_weights(sharded, tiny("llama").spec, lambda done, total, what: calls.append((done, total, what)))
    done = [call[0] for call in calls]
    assert done == sorted(set(done)) and done[-1] == calls[-1][1] == tiny("llama").spec.total_bytes
    files = list(dict.fromkeys(call[2] for call in calls))
    assert files == sorted(f.name for f in sharded.glob("*.safetensors"))


def test_each_round_of_loading_gives_the_same(tiny: Callable, sharded: Path) -> None:
    for _ in range(3):
        store = load_weights(sharded, tiny("llama").spec)
        assert_holds(store, tiny("llama"))
        store.close()
        with pytest.raises(KeyError):
            store.block(0, "mlp")


def test_values_larger_than_a_piece(tiny: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flexinfer.weights import safetensors_reader, values

    model = tiny("opt")
    model.model.save_pretrained(tmp_path)
    monkeypatch.setattr(values, "PIECE_BYTES", 64)
    monkeypatch.setattr(safetensors_reader, "PIECE_BYTES", 64)
    assert_holds(load_weights(tmp_path, model.spec), model)
    spec = replace(model.spec, weight_dtype="bfloat16")
    assert_holds(load_weights(tmp_path, spec), model, torch.bfloat16)


def test_safetensors_are_preferred_and_other_files_ignored(
    tiny: Callable, torch_saver: Callable, tmp_path: Path
) -> None:
    model = tiny("llama")
    model.model.save_pretrained(tmp_path)
    torch_saver({"other": torch.zeros(1)}, tmp_path)
    save_file({"other": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    assert_holds(load_weights(tmp_path, model.spec), model)


def test_the_store_refuses_a_partial_or_meta_model(tiny: Callable) -> None:
    spec: ModelSpec = tiny("llama").spec
    tensors = tiny("llama").expected()
    meta = {place: tensor.to("meta") for place, tensor in tensors.items()}
    with pytest.raises(AssertionError, match="meta"):
        WeightStore(spec, meta)
    tensors.pop((1, "mlp", "up.weight"))
    with pytest.raises(AssertionError, match="planned"):
        WeightStore(spec, tensors)


def test_what_transformers_wrote_has_no_other_names(tiny: Callable, tmp_path: Path) -> None:
    """Guards the fixture: the saved file holds what the module tree says, nothing of this package's making."""
    tiny("opt-350m").model.save_pretrained(tmp_path)
    names = set(load_file(tmp_path / "model.safetensors"))
    assert "model.decoder.project_in.weight" in names and "model.decoder.final_layer_norm.weight" not in names
