"""Temporaries of every op stay inside the workspace that the plan reserved for it."""

from __future__ import annotations

import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flexinfer.engine import Engine
from flexinfer.engine.devices import DeviceConfig
from flexinfer.machine.base import BoundOp
from flexinfer.plan import ON_CPU, ON_GPU, STREAMED, LayerPlacement, PhasePlan, Plan
from flexinfer.schedule.buffers import workspace_bytes
from flexinfer.spec import load_spec
from flexinfer.spec.workload import Workload
from flexinfer.weights import load_weights

LLAMA = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
CONFIGS = {
    "llama": transformers.LlamaConfig(**LLAMA),
    "mistral": transformers.MistralConfig(**LLAMA, sliding_window=16),
    "qwen3": transformers.Qwen3Config(**LLAMA, head_dim=32),
    "opt": transformers.OPTConfig(
        vocab_size=211,
        hidden_size=64,
        ffn_dim=256,
        num_hidden_layers=2,
        num_attention_heads=8,
        max_position_embeddings=256,
        word_embed_proj_dim=32,
        do_layer_norm_before=False,
    ),
}
KV_STREAMS = LayerPlacement(STREAMED, STREAMED, "cpu", "gpu")
DELEGATED = LayerPlacement(STREAMED, STREAMED, "cpu", "cpu")
RESIDENT = LayerPlacement(ON_GPU, ON_GPU, "gpu", "gpu")


class Meter(TorchDispatchMode):
    """The most bytes of new tensors alive at once while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._live: list[weakref.ref[torch.Tensor]] = []
        self._before: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {
            leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)
        }
        known = {t.untyped_storage().data_ptr() for ref in self._live if (t := ref()) is not None}
        self._before |= given - known
        out = func(*args, **(kwargs or {}))
        self._live += [weakref.ref(leaf) for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self._live = [ref for ref in self._live if ref() is not None]
        storages = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for r in self._live if (t := r()) is not None
        }
        self.peak_bytes = max(self.peak_bytes, sum(n for p, n in storages.items() if p not in self._before))
        return out


def phase(layer: LayerPlacement, head: Any, slices: int = 1) -> PhasePlan:
    resident = (0, 1) if layer.mlp.weights == "gpu" else ()
    return PhasePlan("test", (layer, layer), resident, "cpu", head, slices)


@pytest.mark.parametrize("shape", [(1, 200, 4), (5, 7, 4), (40, 3, 3)], ids=["long prompt", "batch", "wide batch"])
@pytest.mark.parametrize("family", CONFIGS)
def test_temporaries_fit_the_declared_workspace(
    family: str, shape: tuple[int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers.AutoModelForCausalLM.from_config(CONFIGS[family]).save_pretrained(tmp_path)
    spec, workload = load_spec(tmp_path, dtype="float32"), Workload(*shape)
    measured: dict[str, int] = {}
    plans = [
        Plan(phase(KV_STREAMS, STREAMED, 3), phase(DELEGATED, STREAMED, 3)),
        Plan(phase(RESIDENT, ON_GPU), phase(KV_STREAMS, ON_CPU)),
    ]
    prompts = [[1 + i % 7] * max(1, workload.prompt_len - i) for i in range(workload.batch)]
    with Engine(spec, load_weights(tmp_path, spec), DeviceConfig("emulated", 1 << 30, None, 1e9), 2) as engine:
        machine = engine.machine

        def metered(bound: BoundOp, params: Any, after: Any, pass_on: Any) -> Any:
            def run(inner: Any) -> int:
                with Meter() as meter:
                    nbytes = bound.run(inner)
                phase_name = "decode" if inner is not None and inner.step else "prefill"
                key = f"{phase_name} {bound.op.kind}"
                measured[key] = max(measured.get(key, 0), meter.peak_bytes)
                return nbytes

            return pass_on(BoundOp(bound.op, run), params, after)

        for name in ("submit", "run_inline"):
            monkeypatch.setattr(machine, name, partial(metered, pass_on=getattr(machine, name)))
        for plan in plans:
            engine.prepare(plan, workload)
            tokens = [1] * workload.batch
            engine.generate(plan, workload, prompts, lambda logits, step, t=tokens: t, lambda step, new: [False])
    for key, nbytes in measured.items():
        phase_name = key.split()[0]
        declared = workspace_bytes(spec, phase_name, workload)  # type: ignore[arg-type]
        assert nbytes <= declared, f"{key}: {nbytes} bytes of temporaries, {declared} declared"
    largest = max(n for k, n in measured.items() if k.startswith("prefill"))
    assert largest >= 0.5 * workspace_bytes(spec, "prefill", workload), "declared far more than is used"
