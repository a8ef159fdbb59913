"""From a model, a machine and a workload to the plan that is fastest, and to the reasons. No torch."""

from __future__ import annotations

from flexinfer.planner.explain import explain, plan_json
from flexinfer.planner.request import PlanRequest
from flexinfer.planner.search import Choice, search

__all__ = ["Choice", "PlanRequest", "explain", "plan_json", "search"]
