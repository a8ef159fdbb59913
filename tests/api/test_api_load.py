"""A real, tiny model through the whole of it, held against transformers; options, environment and refusals."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from flexinfer import FlexInfer
from flexinfer.errors import DoesNotFitError, ModelError, UserError
from flexinfer.options import EMULATED_GPU_BYTES, EMULATED_LINK_BYTES_PER_S, LoadOptions


@pytest.fixture(scope="module")
def reference(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model)


def test_tensors_come_out_as_transformers_gives_them(tiny_model, reference):
    ids = torch.tensor([[0, 0, 5, 6], [9, 8, 7, 3]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    keywords = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    with FlexInfer.from_pretrained(tiny_model, device="cpu") as model:
        out = model.generate(**keywords)
    assert torch.equal(out, reference.generate(**keywords))


@pytest.mark.parametrize("device", ["cpu", "emulated"])
def test_text_is_the_same_streamed_planned_and_in_a_batch(tiny_model, device):
    with FlexInfer.from_pretrained(tiny_model, device=device, prefill="cpu") as model:
        out = model.generate(["hello", "a longer prompt"], max_new_tokens=10, ignore_eos=True)
        assert "".join(model.stream("hello", max_new_tokens=10, ignore_eos=True)) == out.texts[0]
        assert model.generate("a longer prompt", max_new_tokens=10, ignore_eos=True).texts == [out.texts[1]]
        assert out.metrics.ttft_s > 0 and out.metrics.rss_peak_bytes
        assert out.plan.prefill.strategy == "cpu"


def test_dtype_takes_torchs_names_and_the_older_keyword(tiny_model):
    for keywords in ({"dtype": torch.bfloat16}, {"torch_dtype": "bfloat16"}, {"torch_dtype": torch.bfloat16}):
        with FlexInfer.from_pretrained(tiny_model, device="cpu", **keywords) as model:
            assert model.spec.weight_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"strategy": "warp"}, "warp"),
        ({"device": "gpu 7"}, "gpu 7"),
        ({"dtype": "int3"}, "int3"),
        ({"gpu_memory": "lots", "device": "emulated"}, "lots"),
        ({"gpu_layers": -1, "device": "emulated"}, "layers"),
        ({"threads": 0}, "0"),
        ({"link_bandwidth": "1GB/s", "device": "cpu"}, "link_bandwidth"),
        ({"gpu_memory": "1GiB", "device": "cpu"}, "gpu_memory"),
        ({"profile": "/no/such.json"}, "/no/such.json"),
        ({"device_map": "auto"}, "device_map"),
    ],
)
def test_bad_options_are_refused_by_name(tiny_model, keywords, named):
    with pytest.raises(UserError, match=named) as caught:
        FlexInfer.from_pretrained(tiny_model, **keywords)
    assert "\n" not in str(caught.value)


def test_a_built_in_name_has_no_weights():
    with pytest.raises(ModelError, match="sizes only"):
        FlexInfer.from_pretrained("opt-125m")


def test_weights_that_memory_cannot_hold_are_not_read(tiny_model, monkeypatch):
    monkeypatch.setattr("flexinfer.weights.load_weights", lambda *_: pytest.fail("read all the same"))
    with pytest.raises(DoesNotFitError, match="CPU needs"):
        FlexInfer.from_pretrained(tiny_model, device="cpu", cpu_memory=1000)


def test_options_win_over_the_environment(monkeypatch):
    monkeypatch.setenv("FLEXINFER_DEVICE", "emulated")
    monkeypatch.setenv("FLEXINFER_STRATEGY", "split")
    monkeypatch.setenv("FLEXINFER_DECODE", "cpu")
    monkeypatch.setenv("FLEXINFER_GPU_MEMORY", "64MiB")
    options = LoadOptions.resolve()
    assert (options.prefill, options.decode, options.device) == ("split", "cpu", "emulated")
    assert options.gpu_memory_bytes == 64 * 2**20 and options.link_bytes_per_s == EMULATED_LINK_BYTES_PER_S
    options = LoadOptions.resolve(strategy="offload", gpu_memory="1MiB")
    assert (options.prefill, options.decode, options.gpu_memory_bytes) == ("offload", "offload", 2**20)
    assert LoadOptions.resolve(strategy="offload", decode="gpu").decode == "gpu"
    assert LoadOptions.resolve(strategy="auto").decode == "auto"
    assert LoadOptions.resolve(device="cpu").device == "cpu", "memory from the environment does not get in its way"


def test_the_emulated_device_has_defaults():
    options = LoadOptions.resolve(device="emulated")
    assert options.gpu_memory_bytes == EMULATED_GPU_BYTES and options.link_bytes_per_s == EMULATED_LINK_BYTES_PER_S


def test_a_misspelt_variable_stops_a_load(tiny_model, monkeypatch):
    monkeypatch.setenv("FLEXINFER_THREAD", "2")
    with pytest.raises(UserError, match="FLEXINFER_THREAD is not known"):
        FlexInfer.from_pretrained(tiny_model)


def test_the_environment_is_not_read_at_import(tmp_path):
    code = "import flexinfer, sys; flexinfer.FlexInfer; assert 'torch' not in sys.modules"
    environ = {"PATH": "/usr/bin", "FLEXINFER_DEVICE": "nonsense", "FLEXINFER_UNKNOWN": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_gpus_free_memory_is_the_limit(monkeypatch):
    """On a stand-in for CUDA: what is asked for has to be free; without being asked, libraries are left their share."""
    from types import SimpleNamespace

    from flexinfer.device import on_this_machine

    gib = 1 << 30
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("flexinfer.engine.devices.accelerator_device", torch.device)
    monkeypatch.setattr(
        "torch.get_device_module", lambda device: SimpleNamespace(mem_get_info=lambda d: (gib, 2 * gib))
    )
    free = on_this_machine(LoadOptions.resolve())
    assert (free.device, free.gpu_memory_bytes) == ("cuda", gib // 2)
    assert on_this_machine(LoadOptions.resolve(device="cuda:1", gpu_memory=gib)).gpu_memory_bytes == gib
    with pytest.raises(DoesNotFitError, match="cuda has 1.0 GiB free"):
        on_this_machine(LoadOptions.resolve(device="cuda", gpu_memory=gib + 1))
    assert on_this_machine(LoadOptions.resolve(device="cpu")).gpu_memory_bytes is None
