"""Results as the paper's tables, one JSON object, and one self-contained page; or several runs side by side."""

from emnat.report.claims import claims, claims_as_json
from emnat.report.collect import RunResults, collect, write_results_file
from emnat.report.compare import compare_runs, print_comparison
from emnat.report.page import write_page
from emnat.report.synthetic import collect_accuracy, is_synthetic, print_accuracy
from emnat.report.tables import print_tables

__all__ = [
    "RunResults",
    "claims",
    "claims_as_json",
    "collect",
    "collect_accuracy",
    "compare_runs",
    "is_synthetic",
    "print_accuracy",
    "print_comparison",
    "print_tables",
    "write_page",
    "write_results_file",
]
