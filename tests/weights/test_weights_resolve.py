"""Model names: paths, hub ids from a cache without a connection, and downloads that stopped half way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest

from flexinfer.errors import ModelError
from flexinfer.weights import resolve_model

COMMIT = "a" * 40


def refusal(model: str) -> str:
    with pytest.raises(ModelError) as caught:
        resolve_model(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_local_paths_are_returned_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"x")
    assert resolve_model(str(tmp_path)) == tmp_path
    assert resolve_model(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"


@pytest.mark.parametrize("model", ["./none", "none.gguf", "a/b/c", "", "two words", "/no/such/folder"])
def test_what_cannot_be_a_hub_id(model: str) -> None:
    text = refusal(model)
    assert repr(model) in text and "does not exist" in text


def test_a_built_in_name_has_no_weights() -> None:
    assert "sizes without weights" in refusal("opt-125m")


def cached_hub_model(cache: Path, files: dict[str, str]) -> Path:
    """The layout in which huggingface_hub keeps a repository: a ref to a commit, and its snapshot."""
    repo = cache / "models--someone--some-model"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    for name, text in files.items():
        (snapshot / name).write_text(text)
    return snapshot


def resolve_offline(cache: Path, model: str) -> subprocess.CompletedProcess[str]:
    """In a new process, because huggingface_hub reads its environment once; it must not import torch."""
    code = (
        "import sys\nfrom flexinfer.errors import ModelError\nfrom flexinfer.weights import resolve_model\n"
        "try:\n    print(resolve_model(sys.argv[1]))\nexcept ModelError as error:\n    print('refused:', error)\n"
        "assert 'torch' not in sys.modules"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", code, model], env=environment, capture_output=True, text=True, check=True
    )


def test_offline_a_complete_cached_model_is_found(tmp_path: Path) -> None:
    snapshot = cached_hub_model(tmp_path, {"config.json": "{}", "model.safetensors": "x"})
    assert resolve_offline(tmp_path, "someone/some-model").stdout.strip() == str(snapshot)


def test_offline_half_a_download_is_refused(tmp_path: Path) -> None:
    index = json.dumps(
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    )
    files = {"config.json": "{}", "model.safetensors.index.json": index, "model-00001-of-00002.safetensors": "x"}
    cached_hub_model(tmp_path, files)
    text = resolve_offline(tmp_path, "someone/some-model").stdout
    assert "refused" in text and "incomplete" in text and "model-00002-of-00002.safetensors" in text


def test_offline_configuration_alone_is_refused(tmp_path: Path) -> None:
    cached_hub_model(tmp_path, {"config.json": "{}"})
    assert "incomplete" in resolve_offline(tmp_path, "someone/some-model").stdout


def test_offline_nothing_cached(tmp_path: Path) -> None:
    text = resolve_offline(tmp_path, "someone/other").stdout
    assert "refused" in text and "not a local folder" in text and "HF_HUB_OFFLINE" in text


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], list[dict[str, object]]]:
    """hub(files) stands in for the hub with these files; returns the list of calls that it will get."""
    from fnmatch import fnmatch

    calls: list[dict[str, object]] = []

    def serve(files: list[str]) -> list[dict[str, object]]:
        def snapshot_download(repo: str, **options: object) -> str:
            calls.append({"repo": repo, **options})
            folder = tmp_path / COMMIT
            folder.mkdir(exist_ok=True)
            for name in files:
                if any(fnmatch(name, p) for p in options["allow_patterns"]) and "/" not in name:
                    (folder / name).write_text("x")
            return str(folder)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return calls

    return serve


def test_only_one_format_is_fetched_and_of_one_revision(hub: Callable, tmp_path: Path) -> None:
    files = ["config.json", "tokenizer.json", "model.safetensors", "consolidated.safetensors", "pytorch_model.bin"]
    calls = hub(files)
    folder = resolve_model("someone/model")
    assert sorted(f.name for f in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert [call["revision"] for call in calls] == [None, COMMIT]
    assert all("*/*" in call["ignore_patterns"] for call in calls)


def test_pytorch_files_where_there_are_no_others(hub: Callable) -> None:
    hub(["config.json", "pytorch_model.bin"])
    assert (resolve_model("someone/model") / "pytorch_model.bin").is_file()


def test_sizes_alone_need_no_weights(hub: Callable) -> None:
    hub(["config.json", "model.safetensors"])
    assert [f.name for f in resolve_model("someone/model", weights=False).iterdir()] == ["config.json"]


def test_a_repository_of_gguf_files(hub: Callable) -> None:
    hub(["m-Q4.gguf", "m-Q8.gguf"])
    assert "download its .gguf file" in refusal("someone/model")


def test_a_hub_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*args: object, **options: object) -> str:
        raise ConnectionError("the line is dead\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    assert "the line is dead" in refusal("someone/model")
