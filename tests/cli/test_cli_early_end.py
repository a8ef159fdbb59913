"""A run that ends before its limit is compared with the price of what it made; layers that are asked for are used."""

from __future__ import annotations

import pytest

from flexinfer import FlexInfer
from flexinfer.cli.main import main


def test_predicted_for_what_was_made(tiny_model, capfd):
    with FlexInfer.from_pretrained(tiny_model, device="cpu") as model:
        tokens = model.generate(input_ids=[[5, 6, 7]], max_new_tokens=6, ignore_eos=True).token_ids[0]
        plan = model.plan(1, 3, 50)
        fewer = plan.predicted_for(4)
        assert fewer.e2e_s < plan.predicted.e2e_s and fewer.cpu_peak_bytes == plan.predicted.cpu_peak_bytes
        assert plan.predicted_for(50) == plan.predicted
        stop = model.tokenizer.decode([tokens[2]])
    with pytest.raises(SystemExit):
        main(
            [
                "run",
                str(tiny_model),
                "--prompt-ids",
                "5,6,7",
                "--max-new-tokens",
                "50",
                "--device",
                "cpu",
                "--stop",
                stop,
            ]
        )
    assert "tokens; predicted for" in capfd.readouterr().err


def test_layers_asked_for_are_used_by_a_phase(tiny_model):
    with FlexInfer.from_pretrained(tiny_model, device="emulated", gpu_layers=2) as model:
        plan = model.plan(1, 16, 8)
        assert plan.plan.prefill.uses_gpu or plan.plan.decode.uses_gpu
        assert "cpu/cpu" not in {candidate.name for candidate in plan.candidates}
