"""Schedules: ops with dependencies and buffers with owners, built once a phase from a PhasePlan."""
