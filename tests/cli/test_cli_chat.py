"""Conversations through pipes, and Ctrl-C at the moments when it comes."""

from __future__ import annotations

import io
import re
import signal

import pytest

from flexinfer.cli.chat import AnswerPrinter, Conversation
from flexinfer.cli.main import main

ARGUMENTS = ("--device", "cpu", "--max-new-tokens", "4", "--ignore-eos")


@pytest.fixture
def chat(capfd, monkeypatch, tiny_model):
    """Runs `chat` with the given input: (exit code, stdout, stderr)."""

    def run(text: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        with pytest.raises(SystemExit) as ended:
            main(["chat", str(tiny_model), *ARGUMENTS, *arguments])
        captured = capfd.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def prompts(monkeypatch) -> list[str]:
    """The text of each turn as the model gets it."""
    seen: list[str] = []
    request = Conversation._answer

    def spy(self, line):
        template = self._model.tokenizer.apply_chat_template
        monkeypatch.setattr(
            self._model.tokenizer,
            "apply_chat_template",
            lambda messages: seen.append(self._model.tokenizer.decode(template(messages))) or template(messages),
        )
        try:
            request(self, line)
        finally:
            monkeypatch.setattr(self._model.tokenizer, "apply_chat_template", template)

    monkeypatch.setattr(Conversation, "_answer", spy)
    return seen


def test_lines_are_answered_until_the_input_ends(chat, prompts):
    code, out, err = chat("hi\n\nthere\n", "--system", "S")
    answers = out.split("\n")
    assert code == 0 and len(prompts) == 2
    assert prompts[0] == "system:S;user:hi;assistant:"
    assert prompts[1].startswith("system:S;user:hi;assistant:") and prompts[1].endswith(";user:there;assistant:")
    assert len(answers) == 3 and answers[0] in prompts[1]
    assert "cpu/cpu" in err and f"{len(prompts[0])} tokens" in err, "each turn is planned for its own tokens"
    cached = int(re.findall(r"after (\d+) cached", err)[0])
    assert cached >= len(prompts[0]), "the first turn's KV is not computed again"


def test_commands_clear_and_exit(chat, prompts):
    code, _, _ = chat("hi\n/clear\nyou\n/exit\nnever\n")
    assert code == 0 and prompts == ["user:hi;assistant:", "user:you;assistant:"]


def test_a_conversation_past_the_window_can_be_cleared(chat, prompts):
    code, _, err = chat("x" * 5000 + "\n/clear\nhi\n")
    assert code == 0 and "5016 tokens" in err and "/clear" in err and prompts[-1] == "user:hi;assistant:"


def test_a_model_without_a_template_is_refused(chat, monkeypatch):
    monkeypatch.setattr("flexinfer.engine.tokenizer.Tokenizer.has_chat_template", False)
    code, _, err = chat("hi\n")
    assert code == 2 and "no chat template" in err.strip().splitlines()[-1]


def interrupt_at(monkeypatch, *steps: int) -> None:
    """Ctrl-C arrives in these of the steps that the program makes, counted over all answers."""
    count = 0
    on_step = AnswerPrinter.on_step

    def interrupting(self, *arguments):
        nonlocal count
        count += 1
        on_step(self, *arguments)
        if count in steps:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(AnswerPrinter, "on_step", interrupting)


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(chat, prompts, monkeypatch):
    interrupt_at(monkeypatch, 2)
    code, out, err = chat("hi\nthere\n")
    assert code == 0 and "stopped" in err
    said = out.split("\n")[0]
    assert f"assistant:{said};user:there" in prompts[1], "two tokens were said"
    assert len(out.split("\n")[1]) > len(said) or len(out.split("\n")) == 3


def test_a_second_ctrl_c_leaves(chat, monkeypatch):
    interrupt_at(monkeypatch, 2)
    reads = iter(["hi", KeyboardInterrupt])

    def read_line(terminal):
        item = next(reads)
        if item is KeyboardInterrupt:
            raise KeyboardInterrupt
        return item

    monkeypatch.setattr("flexinfer.cli.chat._read_line", read_line)
    code, _, err = chat("")
    assert code == 130 and err.strip().splitlines()[-1] == "flexinfer: interrupted"
