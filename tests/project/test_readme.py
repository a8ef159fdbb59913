"""What README and Makefile name exists: links, commands, options, targets."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from flexinfer.cli.commands import cli

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^ +(?:\.venv/bin/)?(flexinfer .*)$", README.replace("\\\n", " "), re.MULTILINE)


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links and not [link for link in links if not (ROOT / link).exists()]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_and_their_options_exist(command: str) -> None:
    _, name, *arguments = shlex.split(command)
    help_text = CliRunner().invoke(cli, [name, "--help"]).output
    unknown = [option for option in arguments if option.startswith("--") and option not in help_text]
    assert "Usage:" in help_text and not unknown


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text()))
    assert named and named <= targets


def test_the_planned_model_of_the_readme_is_planned() -> None:
    (command,) = [command for command in COMMANDS if command.startswith("flexinfer plan")]
    done = CliRunner().invoke(cli, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    assert "<- chosen" in done.output
