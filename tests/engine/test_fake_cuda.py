"""The CUDA path's compute code on fake cuda tensors, with copies, streams and events injected.

A CPU build has no CUDA, but FakeTensorMode knows its devices: an op with a tensor on the wrong device, of the wrong
shape or dtype raises. What the fake mode cannot do (copies between devices, streams, events) is the adapter's, which
here checks and records instead.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

from flexinfer.engine import Engine
from flexinfer.engine.devices import DeviceConfig
from flexinfer.errors import EngineError
from flexinfer.machine.adapter import DeviceAdapter
from flexinfer.machine.arena import Arena
from flexinfer.machine.base import BoundOp, Handle
from flexinfer.machine.torch_machine import TorchMachine
from flexinfer.plan import ON_CPU, ON_GPU, STREAMED, BlockPlacement, LayerPlacement, PhasePlan, Plan
from flexinfer.schedule.ops import Engine as EngineName
from flexinfer.spec import load_spec
from flexinfer.spec.workload import Workload
from flexinfer.weights import load_weights

pytestmark = pytest.mark.usefixtures("fake_cuda")

SMALL = {"vocab_size": 97, "max_position_embeddings": 64}
LLAMA = {
    **SMALL,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
OPT = {**SMALL, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
CONFIGS = {
    "llama": transformers.LlamaConfig(**LLAMA),
    "mistral": transformers.MistralConfig(**LLAMA, sliding_window=4),
    "qwen2": transformers.Qwen2Config(**LLAMA, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**LLAMA, head_dim=16),
    "opt": transformers.OPTConfig(**OPT, word_embed_proj_dim=16, do_layer_norm_before=False),
}


class ContiguousByClone(TorchFunctionMode):
    """Tensor.contiguous from Python sets the device first, which a CPU build cannot; a clone does the same copy."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.contiguous and not args[0].is_contiguous():
            return args[0].clone(memory_format=torch.contiguous_format)
        return func(*args, **(kwargs or {}))


class FakeCuda(DeviceAdapter):
    """Fake memory; copies that check instead of copying; events that remember where they were recorded."""

    pinned_stage_bytes = 1 << 10

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=False)
        self.recorded: dict[EngineName, int] = {}
        self.waits: list[tuple[EngineName, Any]] = []
        self.engine_of_thread: dict[int, EngineName] = {}

    def empty(self, nbytes: int) -> torch.Tensor:
        with self.mode:
            return torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return False

    def owns(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, FakeTensor)

    def enter(self, engine: EngineName) -> None:
        torch.set_grad_enabled(False)
        if engine == "compute":
            # For the thread's life: the compute engine meets no CPU tensor, the link's engines do
            self.mode.__enter__()
            ContiguousByClone().__enter__()
        self.engine_of_thread[threading.get_ident()] = engine

    def wait_events(self, engine: EngineName, events: Sequence[Any]) -> None:
        assert self.engine_of_thread[threading.get_ident()] == engine
        self.waits += [(engine, event) for event in events]

    def record_event(self, engine: EngineName) -> Any:
        self.recorded[engine] = self.recorded.get(engine, 0) + 1
        return engine, self.recorded[engine]

    def timed_event(self, engine: EngineName) -> Any:
        return engine, self.recorded.get(engine, 0)

    def elapsed_s(self, start: Any, end: Any) -> float:
        return 0.001

    def synchronize_event(self, event: Any) -> None:
        """Fake work has ended when its call returns."""

    def synchronize(self) -> None:
        """Likewise."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if (target.shape, target.dtype) != (source.shape, source.dtype):
            raise TypeError(f"copy of {source.dtype} {source.shape} into {target.dtype} {target.shape}")
        if not isinstance(target, FakeTensor):
            target.zero_()


class OneAtATime(TorchMachine):
    """The fake mode is not made for threads: ops take turns."""

    turn = threading.Lock()

    def submit(self, bound: BoundOp, params: Any, after: Sequence[Handle]) -> Handle:
        def run(inner: Any) -> int:
            with self.turn:
                return bound.run(inner)

        return super().submit(BoundOp(bound.op, run), params, after)


def phase(layers: Sequence[LayerPlacement], head: BlockPlacement, slices: int = 1, embed: str = "cpu") -> PhasePlan:
    resident = tuple(i for i, p in enumerate(layers) if "gpu" in (p.attention.weights, p.mlp.weights))
    return PhasePlan("test", tuple(layers), resident, embed, head, slices)  # type: ignore[arg-type]


KV_STREAMS = LayerPlacement(STREAMED, STREAMED, "cpu", "gpu")
KV_ON_GPU = LayerPlacement(STREAMED, STREAMED, "gpu", "gpu")
DELEGATED = LayerPlacement(STREAMED, STREAMED, "cpu", "cpu")
RESIDENT = LayerPlacement(ON_GPU, ON_GPU, "gpu", "gpu")
CPU = LayerPlacement(ON_CPU, ON_CPU, "cpu", "cpu")
PLANS = {
    "offload": Plan(phase([KV_STREAMS] * 3, STREAMED, 3), phase([KV_ON_GPU, KV_STREAMS, DELEGATED], STREAMED, 3)),
    "split": Plan(phase([CPU, CPU, RESIDENT], ON_GPU), phase([CPU, RESIDENT, RESIDENT], ON_CPU)),
    "gpu": Plan(phase([RESIDENT] * 3, ON_GPU, embed="gpu"), phase([RESIDENT] * 3, ON_GPU, embed="gpu")),
}


@pytest.mark.parametrize(
    ("dtype", "prompts"),
    [("bfloat16", [[1, 2, 3, 4, 5, 6], [7], [8, 9, 10]]), ("float16", [[1, 2, 3, 4, 5, 6]])],
    ids=["uneven", "one"],
)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("family", CONFIGS)
def test_gpu_ops_meet_the_right_devices_shapes_and_dtypes(
    family: str, plan: str, dtype: str, prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp(family)
    transformers.AutoModelForCausalLM.from_config(CONFIGS[family]).save_pretrained(path)
    spec = load_spec(path, dtype=dtype)
    adapter = FakeCuda()
    machine = OneAtATime(adapter, 1 << 30, Arena("CPU", None))
    workload = Workload(len(prompts), 6, 3)
    with Engine(spec, load_weights(path, spec), DeviceConfig("cuda"), 1, machine) as engine:
        engine.prepare(PLANS[plan], workload)
        result = engine.generate(
            PLANS[plan], workload, prompts, lambda logits, step: [1] * len(prompts), lambda step, new: [False]
        )
    assert result.steps == 3
    assert adapter.recorded["compute"] > 0
    assert any(engine == "compute" and event[0] == "h2d" for engine, event in adapter.waits)
    if plan == "offload":
        assert any(engine == "h2d" and event[0] == "compute" for engine, event in adapter.waits), "slots are reused"


def test_a_cpu_tensor_among_gpu_tensors_raises(tmp_path: Any) -> None:
    """The net has teeth: an input left on the CPU is an error that names the op."""
    transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"]).save_pretrained(tmp_path)
    spec = load_spec(tmp_path, dtype="float32")

    class Careless(FakeCuda):
        def empty(self, nbytes: int) -> torch.Tensor:
            fake = super().empty(nbytes)
            return fake if nbytes > 4096 else torch.empty(nbytes, dtype=torch.uint8)

    machine = OneAtATime(Careless(), 1 << 30, Arena("CPU", None))
    with Engine(spec, load_weights(tmp_path, spec), DeviceConfig("cuda"), 1, machine) as engine:
        engine.prepare(PLANS["gpu"], Workload(1, 6, 3))
        with pytest.raises(EngineError, match="failed"):
            engine.generate(
                PLANS["gpu"], Workload(1, 6, 3), [[1] * 6], lambda logits, step: [1], lambda step, new: [False]
            )


def test_memory_is_zero_before_any_stream_touches_it() -> None:
    """The calling thread's stream is none that the engines wait for: a copy could otherwise be zeroed after it."""
    waits: list[str] = []

    class Counting(FakeCuda):
        def synchronize(self) -> None:
            waits.append("device")

    machine = TorchMachine(Counting(), 1 << 20, Arena("CPU", None))
    machine.zero(machine.empty("cpu", 64))
    assert waits == []
    machine.zero(machine.empty("gpu", 64))
    assert waits == ["device"]
