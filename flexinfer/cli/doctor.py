"""`flexinfer doctor`: what was detected, what really runs, what is missing and how to get it."""

from __future__ import annotations

import click

from flexinfer import settings
from flexinfer.cli.options import verbosity
from flexinfer.cli.output import print_json, show


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@verbosity
def doctor(as_json: bool) -> None:
    """What was detected, what really runs, what is missing and how to get it."""
    from flexinfer.calibrate import doctor_report, doctor_text

    settings.check_environment()
    report = doctor_report()
    if as_json:
        print_json({"schema": "flexinfer.doctor/1", **report})
    else:
        show(doctor_text(report))
