"""A run's results as the paper's tables, one JSON object, and one self-contained page."""

from emnat.report.collect import RunResults, collect, write_results_file
from emnat.report.page import write_page
from emnat.report.tables import print_tables

__all__ = ["RunResults", "collect", "print_tables", "write_page", "write_results_file"]
