"""KV of the last generation is reused when asked for, and gives what a fresh start gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexinfer import FlexInfer
from flexinfer.errors import UserError

FIRST = [72, 101, 108, 108, 111, 44, 32]


@pytest.mark.parametrize("device", ["cpu", "emulated"])
def test_the_second_turn_equals_a_fresh_start(tiny_model, device):
    with FlexInfer.from_pretrained(tiny_model, device=device, dtype="float32") as model:
        answer = model.generate(input_ids=[FIRST], max_new_tokens=6, ignore_eos=True).token_ids[0]
        turn = [*FIRST, *answer, 119, 111, 114]
        request = model.request(input_ids=[turn], max_new_tokens=6, ignore_eos=True)
        plan = model.plan_for(request, reuse=True)
        assert plan.workload.cached_tokens == len(FIRST) + 5
        assert plan.workload.prompt_len == 4, "planned on new tokens"
        reused = model.run(request, plan=plan)
        assert reused.outputs[0].prompt_tokens == len(turn)
        assert reused.token_ids == model.generate(input_ids=[turn], max_new_tokens=6, ignore_eos=True).token_ids


def test_a_plan_whose_cache_is_gone_is_refused(tiny_model):
    with FlexInfer.from_pretrained(tiny_model, device="cpu") as model:
        model.generate(input_ids=[FIRST], max_new_tokens=2, ignore_eos=True)
        request = model.request(input_ids=[[*FIRST, 1]], max_new_tokens=2)
        plan = model.plan_for(request, reuse=True)
        model.generate(input_ids=[[9, 9, 9]], max_new_tokens=2, ignore_eos=True)
        with pytest.raises(UserError, match="plan again"):
            model.run(request, plan=plan)


def test_dynamic_rope_starts_afresh(tiny_model):
    with FlexInfer.from_pretrained(tiny_model, device="cpu") as model:
        model.generate(input_ids=[FIRST], max_new_tokens=2, ignore_eos=True)
        request = model.request(input_ids=[[*FIRST, 1]], max_new_tokens=2)
        assert model.plan_for(request, reuse=True).workload.cached_tokens == 7
        rope = replace(model.spec.rope, type="dynamic", original_max_positions=64)
        model.spec = replace(model.spec, rope=rope)
        assert model.plan_for(request, reuse=True).workload.cached_tokens == 0
