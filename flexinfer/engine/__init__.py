"""The executor: binds schedules to weights, cache and models, and drives prefill, the switch and decode."""

from flexinfer.engine.engine import Engine as Engine
from flexinfer.engine.engine import RunResult as RunResult
