"""Whatever stands in the files of a model's folder, it loads or is refused in one line that says which file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flexinfer import FlexInfer
from flexinfer.engine.tokenizer import load_tokenizer
from flexinfer.errors import ModelError, ProfileError, UserError
from flexinfer.estimator import HardwareProfile
from flexinfer.options import LoadOptions

LEAVES = st.sampled_from(
    [None, 0, -1, 1, 2.5, 1e308, -(10**30), 10**30, "", "x", "\0", [], {}, [1], {"a": 1}, [[]], True, False, "<end>"]
)


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def paths_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value; long lists and tables by their first entries."""
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.items())[:12]
    elif isinstance(value, list):
        inner = list(enumerate(value))[:3]
    return [at] * bool(at) + [path for key, item in inner for path in paths_in(item, (*at, key))]


def changed(value: Any, path: tuple[Any, ...], leaf: Any, remove: bool) -> Any:
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    if remove:
        del inner[path[-1]]
    else:
        inner[path[-1]] = leaf
    return copy


@pytest.mark.usefixtures("shipped_profile")
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_anywhere_gives_a_request_or_one_line(name, folder, tiny_model, data):
    original = json.loads((tiny_model / name).read_text())
    path = data.draw(st.sampled_from(paths_in(original)))
    spoilt = changed(original, path, data.draw(LEAVES), remove=data.draw(st.booleans()))
    (folder / name).write_text(json.dumps(spoilt))
    try:
        with FlexInfer.open(str(folder), LoadOptions(device="cpu")) as model:
            request = model.request("hello", max_new_tokens=2)
            model.tokenizer.decode(request.prompts[0])
            model.request("hello", max_new_tokens=2, chat=True)
    except UserError as error:
        assert str(error) and "\n" not in str(error)


TEMPLATES = {
    "{{ 1 / 0 }}": "division by zero",
    "{{ messages + 1 }}": "list",
    "{% for m in messages %}": "end of template",
    "{{ raise_exception('only one turn') }}": "only one turn",
    "{{ messages[5].content }}": "no element 5",
    "{{ ''.__class__.__mro__ }}": "unsafe",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template_that_fails_is_named(folder, template):
    (folder / "chat_template.jinja").write_text(template)
    tokenizer = load_tokenizer(folder)
    with pytest.raises(UserError, match="chat template refuses this conversation: ") as caught:
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert TEMPLATES[template] in str(caught.value)


def test_a_tokenizer_of_another_model_is_told_from_a_wrong_id(folder, monkeypatch):
    model = FlexInfer.open(str(folder), LoadOptions(device="cpu"))
    monkeypatch.setattr(type(model.tokenizer), "encode", lambda *_: [5, 300])
    with pytest.raises(ModelError, match="gives token id 300.*ids 0 to 256.*do not belong together"):
        model.request("hello")
    with pytest.raises(UserError, match="prompt 0 has token id 300"):
        model.request([5, 300])


@pytest.mark.parametrize("spoil", ["missing", "misshapen", "more layers"])
def test_weights_are_accounted_for_before_anything_is_measured(folder, spoil, monkeypatch):
    def measures(*_: object, **__: object) -> None:
        raise AssertionError("this machine is measured for a model that cannot run")

    config = json.loads((folder / "config.json").read_text())
    if spoil == "missing":
        (folder / "model.safetensors").unlink()
    elif spoil == "misshapen":
        config["vocab_size"] = 10**9  # more than any memory holds: a plan would say that it does not fit
    else:
        config["num_hidden_layers"] = 4
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.delenv("FLEXINFER_PROFILE", raising=False)
    monkeypatch.setattr("flexinfer.calibrate.cached_profile", measures)
    with pytest.raises(ModelError):
        FlexInfer.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize("count", [4097, 999999999, 1e308])
def test_more_layers_than_any_model_has_are_refused_at_once(folder, count):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": count}))
    with pytest.raises(ModelError, match="num_hidden_layers is too large; it must be at most 4096"):
        FlexInfer.from_pretrained(folder)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\ufeff[", '{"schema":' + "9" * 5000 + "}"])
def test_a_profile_that_is_not_json_says_what_to_do(tmp_path, text):
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match="p.json is not valid JSON .*; measure again with `flexinfer calibrate`"):
        HardwareProfile.load(path)
