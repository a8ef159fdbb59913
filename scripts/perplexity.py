"""Perplexity of a model on a text, computed by FlexInfer's own forward pass on the CPU.

    python scripts/perplexity.py MODEL --text emma.txt --json

The text is read from character 2000 on, past title pages and contents, and cut into disjoint windows of 1024 tokens.
Each window is scored alone, without a BOS token: its first token is given, the other 1023 are predicted. The figure
is exp(mean negative log-likelihood) over all windows, the logarithms taken in float32 whatever the model computes in.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.errors import FlexInferError, UserError

if TYPE_CHECKING:
    import torch

    from flexinfer.models.forward import Weighted
    from flexinfer.spec.model_spec import ModelSpec


def text_from(file: Path, start: int) -> str:
    """The text after its first `start` characters, newlines as they are. Raises UserError."""
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            text = stream.read()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    if len(text) <= start:
        raise UserError(f"{file} has {len(text)} characters; --start {start} leaves none")
    return text[start:]


def windows_of(ids: list[int], count: int, length: int) -> list[list[int]]:
    """The first `count` disjoint windows. Raises UserError when the text is too short."""
    if len(ids) < count * length:
        raise UserError(f"the text gives {len(ids)} tokens; {count} windows of {length} need {count * length}")
    return [ids[i * length : (i + 1) * length] for i in range(count)]


def negative_log_likelihood(spec: ModelSpec, store: Weighted, window: list[int]) -> float:
    """Sum over the window's tokens but the first, in nats."""
    import torch
    import torch.nn.functional as F

    from flexinfer.models.forward import full_forward
    from flexinfer.models.opset import TorchOps

    tokens_BS = torch.tensor([window])
    with torch.inference_mode():
        logits_BSV: torch.Tensor = full_forward(spec, store, tokens_BS, TorchOps())
        return float(F.cross_entropy(logits_BSV[0, :-1].float(), tokens_BS[0, 1:], reduction="sum"))


def measure(args: argparse.Namespace) -> dict[str, object]:
    """Load, tokenize, score. Raises UserError for bad input."""
    from flexinfer.engine.tokenizer import load_tokenizer
    from flexinfer.spec import load_spec
    from flexinfer.weights import load_weights, resolve_model

    text = text_from(args.text, args.start)
    path = resolve_model(args.model)
    spec = load_spec(path, args.dtype)
    if args.window > spec.max_positions:
        raise UserError(f"--window {args.window} is more than the model's {spec.max_positions} positions")
    tokenizer = load_tokenizer(path)
    if tokenizer is None:
        raise UserError(f"{path} has no tokenizer, without which a text has no tokens")
    windows = windows_of(tokenizer.encode(text, add_special_tokens=False), args.windows, args.window)
    store = load_weights(path, spec)
    began, losses = time.perf_counter(), []
    for number, window in enumerate(windows, 1):
        losses.append(negative_log_likelihood(spec, store, window))
        so_far = math.exp(sum(losses) / (number * (args.window - 1)))
        print(f"window {number} of {len(windows)}: {so_far:.3f} so far", file=sys.stderr)
    predictions = args.windows * (args.window - 1)
    return {
        "schema": "flexinfer.perplexity/1",
        "model": spec.name,
        "text": args.text.name,
        "dtype": spec.weight_dtype,
        "start": args.start,
        "window": args.window,
        "predictions": predictions,
        "perplexity": math.exp(sum(losses) / predictions),
        "window_perplexities": [math.exp(loss / (args.window - 1)) for loss in losses],
        "seconds": time.perf_counter() - began,
    }


def counted(least: int) -> Callable[[str], int]:
    """An argparse type: a whole number of at least `least`."""

    def parse(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return parse


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="a folder, a .gguf file or a hub id")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="UTF-8 text")
    parser.add_argument("--windows", type=counted(1), default=6, metavar="N")
    parser.add_argument("--window", type=counted(2), default=1024, metavar="TOKENS")
    parser.add_argument("--start", type=counted(0), default=2000, metavar="CHARACTER")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    return parser


def main() -> int:
    args = arguments().parse_args()
    try:
        result = measure(args)
    except FlexInferError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if args.json:
        print(json.dumps(result))
    else:
        print(f"perplexity {result['perplexity']:.3f} over {result['predictions']} predictions ({result['dtype']})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
