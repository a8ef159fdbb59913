"""From what the user calls a model to a folder or file on disk: a local path, else a Hugging Face hub id. No torch.

A download that stopped half way must not pass for a model: configuration and every weight file that the index names
have to be there, whether they come from the hub now or from its cache.
"""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from pathlib import Path

from flexinfer.errors import ModelError
from flexinfer.spec import builtin_names
from flexinfer.weights.index import weight_files

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_WITHOUT_WEIGHTS = ["*.json", "*.txt", "*.model", "*.jinja"]
_SUBFOLDERS = "*/*"


def resolve_model(model: str, weights: bool = True) -> Path:
    """Folder or .gguf file of `model`. With `weights` false a hub model's weight files are not fetched.

    Raises ModelError that says what was tried: neither a path nor a hub model, a built-in name, a hub that cannot be
    reached, or a cached copy with files missing.
    """
    path = Path(os.path.expanduser(model))
    if model and path.exists():
        return path
    if not _HUB_ID.fullmatch(model) or path.suffix.lower() == ".gguf":
        raise ModelError(f"{model!r} does not exist, and is no Hugging Face hub id either; check the path")
    if model in builtin_names():
        raise ModelError(
            f"{model} is a built-in configuration, sizes without weights; give a folder, a .gguf file or a hub id"
        )
    folder = _fetch(model, _WITHOUT_WEIGHTS, None)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{model!r} on the hub has no config.json; download its .gguf file and give the path of that")
    return _with_weights(model, folder) if weights else folder


def _with_weights(model: str, folder: Path) -> Path:
    """Fetch safetensors, or PyTorch files where the hub has no others, of the revision that `folder` holds."""
    for pattern in ("model*.safetensors", "pytorch_model*.bin"):
        folder = _fetch(model, [*_WITHOUT_WEIGHTS, pattern], folder.name)
        if any(folder.glob(pattern)):
            break
    try:
        weight_files(folder)
    except ModelError as error:
        raise ModelError(f"the copy of {model!r} from the hub is incomplete: {error}") from None
    return folder


def _fetch(model: str, patterns: list[str], revision: str | None) -> Path:
    """Files of a hub model in its local cache; without a connection, or offline, what the cache has."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # requests' or httpx's, by version

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=patterns, ignore_patterns=[_SUBFOLDERS]))
    except (OSError, ValueError, HTTPError) as error:
        raise ModelError(_unreachable(model, error)) from error


def _unreachable(model: str, error: BaseException) -> str:
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    near = get_close_matches(model.lower(), builtin_names(), n=1, cutoff=0.8)
    tried = f"{model!r} is not a local folder or .gguf file" + (f", nor the built-in {near[0]}" if near else "")
    if isinstance(error, GatedRepoError):
        return f"{tried}; on the hub its licence must be accepted first, and HF_TOKEN set"
    if isinstance(error, RepositoryNotFoundError):
        return f"{tried}, and the hub has no model of that name that you may read; check the name, or set HF_TOKEN"
    if constants.HF_HUB_OFFLINE:
        return f"{tried}, and the hub's cache has no complete copy; HF_HUB_OFFLINE forbids fetching it"
    return f"{tried}, and the hub did not give it ({_first_line(error)}); check the path, the name or the connection"


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0].rstrip(".") if text else type(error).__name__
