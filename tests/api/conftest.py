"""A tiny random model with a byte-level tokenizer and a chat template, as a folder; planned on a shipped profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from flexinfer.estimator import HardwareProfile

TEMPLATE = "{% for m in messages %}{{ m['role'] + ':' + m['content'] + ';' }}{% endfor %}assistant:"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """256 bytes and <end>."""
    vocab = {token: i for i, token in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "<end>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", chat_template=TEMPLATE)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        eos_token_id=256,
        bos_token_id=None,
    )
    torch.manual_seed(3)
    LlamaForCausalLM(config).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def profile_file(tmp_path_factory) -> Path:
    """A shipped machine, as one whose CPU was measured with one thread."""
    shipped = HardwareProfile.load("a100-icl")
    path = tmp_path_factory.mktemp("profile") / "machine.json"
    replace(shipped, name="machine", cpu=replace(shipped.cpu, threads=1)).save(path)
    return path


@pytest.fixture(autouse=True)
def shipped_profile(monkeypatch, profile_file) -> None:
    """No measuring in tests."""
    monkeypatch.setenv("FLEXINFER_PROFILE", str(profile_file))
    monkeypatch.setenv("FLEXINFER_THREADS", "1")
