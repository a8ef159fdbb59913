"""Results as people read them. No torch."""

from flexinfer.report.table import text_table
from flexinfer.report.times import eta_warning, times_table

__all__ = ["eta_warning", "text_table", "times_table"]
