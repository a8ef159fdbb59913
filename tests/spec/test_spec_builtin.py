"""Built-in configurations against the published parameter counts, some of them by hand."""

from __future__ import annotations

import pytest

from flexinfer.spec import builtin_names, load_spec

# As the hub counts them, a tied head once. opt-66b and opt-175b are by hand below.
PUBLISHED = {
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    assert load_spec(name).total_params == PUBLISHED[name]


@pytest.mark.parametrize(("name", "d", "layers"), [("opt-66b", 9216, 64), ("opt-175b", 12288, 96)])
def test_large_opt_by_hand(name: str, d: int, layers: int) -> None:
    """A layer: 12 d^2 of matrices, 9 d of biases, 4 d of norms. Around them 50,272 tokens, 2,050 positions, a norm."""
    spec = load_spec(name)
    assert spec.total_params == layers * (12 * d * d + 13 * d) + (50272 + 2050) * d + 2 * d
    assert spec.layer_bytes == 2 * (12 * d * d + 13 * d)


def test_llama3_8b_by_hand() -> None:
    spec = load_spec("llama3-8b")
    d, kv, ffn, vocab = 4096, 1024, 14336, 128256
    attention = 2 * d * d + 2 * kv * d + d
    mlp = 3 * d * ffn + d
    assert spec.block_params("attention") == attention and spec.block_params("mlp") == mlp
    assert spec.total_params == 32 * (attention + mlp) + 2 * vocab * d + d
    assert spec.kv_bytes_per_token == 32 * 2 * 1024 * 2 == 131_072


def test_every_name_loads_and_counts_sixteen_bits() -> None:
    assert set(builtin_names()) == {*PUBLISHED, "opt-66b", "opt-175b"}
    for name in builtin_names():
        spec = load_spec(name)
        assert spec.name == name and spec.dtype_bytes == 2
        assert load_spec(name, dtype="float32").total_bytes == 2 * spec.total_bytes


def test_mistral_has_its_window_and_opt_350m_its_projection() -> None:
    assert set(load_spec("mistral-7b").windows) == {4096}
    assert load_spec("opt-350m").embedding_size == 512 and not load_spec("opt-350m").norm_first
