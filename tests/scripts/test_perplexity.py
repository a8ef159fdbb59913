"""scripts/perplexity.py: its arithmetic against transformers, its command line, and what bad input gets."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "perplexity.py"

PASSAGE = """It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want
of a wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, this
truth is so well fixed in the minds of the surrounding families, that he is considered the rightful property of some
one or other of their daughters."""


@pytest.fixture(scope="module")
def perplexity() -> ModuleType:
    spec = importlib.util.spec_from_file_location("perplexity_script", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(perplexity: ModuleType, monkeypatch: pytest.MonkeyPatch, *args: object) -> int:
    monkeypatch.setattr(sys, "argv", ["perplexity.py", *map(str, args)])
    return perplexity.main()


def test_the_sum_is_that_of_transformers(perplexity: ModuleType, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from flexinfer.spec import load_spec
    from flexinfer.weights import load_weights

    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, max_position_embeddings=64, initializer_range=0.5,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    window = torch.randint(0, 64, (48,))
    with torch.inference_mode():
        wanted = float(model(window[None], labels=window[None]).loss) * 47
    spec = load_spec(tmp_path)
    got = perplexity.negative_log_likelihood(spec, load_weights(tmp_path, spec), window.tolist())
    assert math.isclose(got, wanted, rel_tol=1e-5)


def test_windows_are_disjoint_and_whole(perplexity: ModuleType) -> None:
    assert perplexity.windows_of(list(range(11)), 2, 5) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_newlines_of_the_text_are_kept(perplexity: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"ab\r\ncd\n\ne\xc3\xa9")
    assert perplexity.text_from(tmp_path / "t.txt", 1) == "b\r\ncd\n\ne\u00e9"


def test_the_real_model(
    perplexity: ModuleType,
    demo_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One short window; the figure is transformers' own on the dequantized model."""
    (tmp_path / "t.txt").write_text(PASSAGE)
    args = [demo_model, "--text", tmp_path / "t.txt", "--windows", 1, "--window", 64, "--start", 0, "--json"]
    assert run(perplexity, monkeypatch, *args) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["dtype"] == "float32" and result["predictions"] == 63
    assert math.isclose(result["perplexity"], 40.747, rel_tol=0.001)


@pytest.mark.parametrize(
    "args,word",
    [
        (["no-such-file.txt"], "cannot be read"),
        (["short.txt", "--start", 900], "leaves none"),
        (["short.txt", "--start", 0], "6 windows of 1024 need 6144"),
        (["short.txt", "--start", 0, "--window", 100000], "8192 positions"),
        (["latin.txt"], "not UTF-8"),
    ],
)
def test_bad_input_is_one_line(
    perplexity: ModuleType,
    demo_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[object],
    word: str,
) -> None:
    (tmp_path / "short.txt").write_text(PASSAGE)
    (tmp_path / "latin.txt").write_bytes(b"\xe9t\xe9")
    assert run(perplexity, monkeypatch, demo_model, "--text", tmp_path / str(args[0]), *args[1:]) == 2
    text = capsys.readouterr().err
    assert word in text and text.count("\n") == 1


@pytest.mark.parametrize("option", [["--windows", "0"], ["--window", "1"], ["--start", "-1"], ["--dtype", "int8"]])
def test_bad_options_exit_with_2(perplexity: ModuleType, monkeypatch: pytest.MonkeyPatch, option: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(perplexity, monkeypatch, "m", "--text", "t", *option)
    assert caught.value.code == 2
