"""Environment variables: parsed when asked for, unknown and malformed ones named, precedence as promised."""

from __future__ import annotations

import pytest

from flexinfer import settings
from flexinfer.errors import UserError


def test_values_are_parsed():
    environ = {"FLEXINFER_GPU_MEMORY": "2GiB", "FLEXINFER_THREADS": "4", "FLEXINFER_EMULATED_JITTER_S": "0.005"}
    assert settings.read("FLEXINFER_GPU_MEMORY", environ) == 2 * 2**30
    assert settings.read("FLEXINFER_THREADS", environ) == 4
    assert settings.read("FLEXINFER_EMULATED_JITTER_S", environ) == 0.005
    assert settings.read("FLEXINFER_DEVICE", environ) is None
    assert settings.read("FLEXINFER_DEVICE", {"FLEXINFER_DEVICE": " "}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FLEXINFER_GPU_MEMORY", "lots"),
        ("FLEXINFER_THREADS", "0"),
        ("FLEXINFER_ISA", "sse"),
        ("FLEXINFER_STRATEGY", "warp"),
        ("FLEXINFER_DEVICE", "cpu:1"),
        ("FLEXINFER_DEVICE", "GPU 0"),
        ("FLEXINFER_EMULATED_JITTER_S", "-1"),
        ("FLEXINFER_EMULATED_JITTER_S", "nan"),
        ("FLEXINFER_GPU_LAYERS", "-1"),
        ("FLEXINFER_LINK_BANDWIDTH", "fast"),
        ("FLEXINFER_DTYPE", "int8"),
    ],
)
def test_a_bad_value_names_its_variable(name, value):
    with pytest.raises(UserError, match=name):
        settings.check_environment({name: value})


def test_a_misspelt_variable_is_an_error_that_lists_the_known():
    with pytest.raises(UserError, match="FLEXINFER_GPU_MEMROY.*FLEXINFER_GPU_MEMORY"):
        settings.check_environment({"FLEXINFER_GPU_MEMROY": "1GiB"})
    settings.check_environment({"PATH": "/bin", "FLEXINFER_DEVICE": "cuda:1", "FLEXINFER_GPU_LAYERS": "0"})


def test_precedence_is_option_environment_profile_default(monkeypatch):
    assert settings.resolve("THREADS", None, default=1) == 1
    assert settings.resolve("THREADS", None, profile=2, default=1) == 2
    monkeypatch.setenv("FLEXINFER_THREADS", "3")
    assert settings.resolve("THREADS", None, profile=2, default=1) == 3
    assert settings.resolve("THREADS", 4, profile=2, default=1) == 4


@pytest.mark.parametrize("device", ["auto", "cpu", "emulated", "cuda", "cuda:1", "xpu:0"])
def test_devices_that_are_taken(device):
    assert settings.parse_device(device) == device


@pytest.mark.parametrize("layers", [-1, "x", 1.0, True, "1.5"])
def test_layer_counts_are_whole(layers):
    with pytest.raises(UserError):
        settings.parse_layers(layers)
    assert settings.parse_layers(0) == settings.parse_layers("0") == 0
