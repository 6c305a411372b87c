"""The paper's findings re-examined at small scale: several seeds, paired confidence intervals."""

from undercast.findings.page import markdown
from undercast.findings.plan import Plan, check, check_variants, make_plan, training_data
from undercast.findings.run import run_findings, run_rows

__all__ = [
    "Plan",
    "check",
    "check_variants",
    "make_plan",
    "markdown",
    "run_findings",
    "run_rows",
    "training_data",
]
