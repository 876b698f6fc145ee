"""A run's results as the paper's tables, one JSON object, and one self-contained page."""

from emnat.report.claims import claims_as_json
from emnat.report.collect import RunResults, collect, write_results_file
from emnat.report.page import write_page
from emnat.report.tables import print_tables

__all__ = ["RunResults", "claims_as_json", "collect", "print_tables", "write_page", "write_results_file"]
