"""The group of commands that `flexinfer` is."""

from __future__ import annotations

import click

import flexinfer
from flexinfer.cli.calibrate import calibrate
from flexinfer.cli.chat import chat
from flexinfer.cli.doctor import doctor
from flexinfer.cli.output import show
from flexinfer.cli.plan import plan
from flexinfer.cli.run import run


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(flexinfer.__version__, prog_name="flexinfer")
@click.pass_context
def cli(context: click.Context) -> None:
    """Run language models that do not fit the GPU: planned per phase, and priced before they run."""
    if context.invoked_subcommand is None:
        show(context.get_help())


for command in (run, chat, plan, calibrate, doctor):
    cli.add_command(command)
