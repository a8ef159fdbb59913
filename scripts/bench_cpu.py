"""TTFT and TPOT on the CPU: ours, peers and the roofline, side by side in one run.

    python scripts/bench_cpu.py MODEL [--peers hf] [--dtype float32] [--batch 1] [--prompt-len 128] [--new-tokens 32]
                                [--rounds 5] [--threads N] [--json]

MODEL is a folder or a .gguf file. Prefill is bound by arithmetic, decode by memory: the roofline of TTFT is the
prompt's FLOPs over the peak FLOP/s that this machine reached just before, that of TPOT the weights and KV over its read
bandwidth. Systems take turns, round by round, after one round of warm-up that is not counted; figures are medians.
Peers run in this process with the same number of threads, on the same ids, greedy; their tokens are compared with ours.

Columns: TTFT and TPOT in milliseconds, their ratio to the roofline (1 is perfect), prediction for ours. A peer that is
not installed is named and left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flexinfer import FlexInfer, kernels
from flexinfer.host import available_threads
from flexinfer.spec.model_spec import ModelSpec


@dataclass(frozen=True)
class Sample:
    """One run: times in seconds, and the first sequence's tokens."""

    ttft_s: float
    tpot_s: float
    tokens: tuple[int, ...]


Run = Callable[[torch.Tensor, int], Sample]
"""(ids [batch, prompt], new tokens) -> Sample."""


def main() -> int:
    args = parse()
    torch.set_num_threads(args.threads)
    options = {"device": "cpu", "dtype": args.dtype, "threads": args.threads}
    with FlexInfer.from_pretrained(args.model, **options) as model:
        systems: dict[str, Run] = {"flexinfer": ours(model)}
        if "hf" in args.peers:
            systems["transformers"] = transformers_peer(Path(args.model), model.spec.weight_dtype)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(10, model.spec.vocab_size - 10, (args.batch, args.prompt_len), generator=generator)
        samples = measure(systems, ids, args.new_tokens, args.rounds)
        plan = model.plan(args.batch, args.prompt_len, args.new_tokens)
        report = describe(model.spec, args, samples)
        report["predicted"] = {"ttft_s": plan.ttft_s, "tpot_s": plan.tpot_s}
    print(json.dumps(report) if args.json else table(report))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--peers", type=lambda text: text.split(","), default=["hf"], help="hf, or none")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=available_threads())
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    args = parser.parse_args()
    unknown = set(args.peers) - {"hf", "none"}
    if unknown:
        parser.error(f"unknown peers {sorted(unknown)}; known: hf, none")
    return args


def ours(model: FlexInfer) -> Run:
    def run(ids: torch.Tensor, new: int) -> Sample:
        out = model.generate(input_ids=ids.tolist(), max_new_tokens=new, ignore_eos=True)
        return Sample(out.metrics.ttft_s, out.metrics.tpot_s, tuple(out.token_ids[0]))

    return run


def transformers_peer(path: Path, dtype: str) -> Run:
    """transformers' own forward with its KV cache, driven step by step."""
    import transformers

    if path.suffix == ".gguf":
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=getattr(torch, dtype)
        )
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    model.eval()

    @torch.inference_mode()
    def run(ids: torch.Tensor, new: int) -> Sample:
        start = time.perf_counter()
        out = model(ids, use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1:].argmax(-1)
        first = time.perf_counter()
        tokens = [int(token[0])]
        for _ in range(new - 1):
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
            tokens.append(int(token[0]))
        return Sample(first - start, (time.perf_counter() - first) / (new - 1), tuple(tokens))

    return run


def measure(systems: dict[str, Run], ids: torch.Tensor, new: int, rounds: int) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {name: [] for name in systems}
    for turn in range(rounds + 1):
        for name, run in systems.items():
            sample = run(ids, new)
            print(f"round {turn} {name}: {sample.ttft_s * 1e3:.1f} ms, {sample.tpot_s * 1e3:.2f} ms", file=sys.stderr)
            if turn:
                samples[name].append(sample)
    return samples


def describe(spec: ModelSpec, args: argparse.Namespace, samples: dict[str, list[Sample]]) -> dict[str, Any]:
    floor = roofline(spec, args)
    rows = []
    for name, runs in samples.items():
        ttft_s, tpot_s = (statistics.median(getattr(run, key) for run in runs) for key in ("ttft_s", "tpot_s"))
        rows.append(
            {
                "system": name,
                "ttft_s": ttft_s,
                "tpot_s": tpot_s,
                "ttft_over_roofline": ttft_s / floor["ttft_s"],
                "tpot_over_roofline": tpot_s / floor["tpot_s"],
                "same_tokens": runs[0].tokens == samples["flexinfer"][0].tokens,
            }
        )
    shape = {key: getattr(args, key) for key in ("batch", "prompt_len", "new_tokens", "threads", "rounds")}
    return {"model": spec.name, "dtype": spec.weight_dtype, **shape, "roofline": floor, "rows": rows}


def roofline(spec: ModelSpec, args: argparse.Namespace) -> dict[str, float]:
    """The least time that this machine's peaks allow: FLOPs of the prompt, bytes of a middle decode step."""
    bandwidth, peak = kernels.read_bandwidth(args.threads), kernels.peak_flops(spec.weight_dtype, args.threads)
    rows, middle = args.batch * args.prompt_len, args.prompt_len + args.new_tokens // 2
    layer = spec.block_linear_flops("attention", rows) + spec.block_linear_flops("mlp", rows)
    attention = sum(spec.attention_flops(i, args.prompt_len, 0) for i in range(spec.num_layers)) * args.batch
    flops = spec.num_layers * layer + attention + spec.block_linear_flops("head", args.batch)
    kv = sum(spec.kv_read_bytes(i, middle) for i in range(spec.num_layers)) * args.batch
    weights = spec.num_layers * spec.layer_bytes + spec.block_bytes("head")
    return {
        "read_bytes_per_s": bandwidth,
        "peak_flops_per_s": peak,
        "ttft_s": flops / peak,
        "tpot_s": (weights + kv) / bandwidth,
    }


def table(report: dict[str, Any]) -> str:
    floor = report["roofline"]
    lines = [
        f"{report['model']}, {report['dtype']}, batch {report['batch']}, prompt {report['prompt_len']}, "
        f"{report['new_tokens']} new, {report['threads']} threads, {report['rounds']} rounds",
        f"{'system':14}{'TTFT ms':>10}{'/roof':>8}{'TPOT ms':>10}{'/roof':>8}  same tokens",
    ]
    for row in report["rows"]:
        lines.append(
            f"{row['system']:14}{row['ttft_s'] * 1e3:10.1f}{row['ttft_over_roofline']:8.2f}"
            f"{row['tpot_s'] * 1e3:10.2f}{row['tpot_over_roofline']:8.2f}  {'yes' if row['same_tokens'] else 'no'}"
        )
    lines.append(f"{'predicted':14}{report['predicted']['ttft_s'] * 1e3:10.1f}{'':8}"
                 f"{report['predicted']['tpot_s'] * 1e3:10.2f}")  # fmt: skip
    lines.append(
        f"{'roofline':14}{floor['ttft_s'] * 1e3:10.1f}{'':8}{floor['tpot_s'] * 1e3:10.2f}{'':8}  "
        f"{floor['read_bytes_per_s'] / 1e9:.1f} GB/s, {floor['peak_flops_per_s'] / 1e9:.0f} GFLOP/s"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
