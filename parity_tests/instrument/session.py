"""What a run of pytest or a command keeps of every comparison: nothing, unless it was asked to."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from .tolerances import GREW, ORDINARY
from .verdicts import PASSING, Report, Row

__all__ = ["SESSION", "Baseline", "Session"]


@dataclass
class Session:
    """What to keep, and where.

    Args:
        reports: A folder for a web page and a JUnit file of every comparison.
        record, replay: A folder for what originals give, to be written or to be read in their place.
        baseline: Errors that may not grow.
        case: What is running, for the names of files.
    """

    reports: Path | None = None
    record: Path | None = None
    replay: Path | None = None
    baseline: Baseline | None = None
    case: str = ""
    count: int = 0

    def begin(self, case: str) -> None:
        self.case, self.count = case, 0

    def name(self) -> str:
        """Of the comparison that begins: of its test, with a number from its second one on."""
        self.count += 1
        name = quote(self.case, safe=" []=,+") or "comparison"
        return name if self.count == 1 else f"{name}~{self.count}"

    def kept(self, report: Report, name: str) -> Report:
        """The report, with what grew since the baseline."""
        if self.baseline:
            report = self.baseline.held(report, name)
        if self.reports:
            for suffix in (".html", ".xml"):
                report.save(self.reports / f"{name}{suffix}")
        return report


@dataclass
class Baseline:
    """Errors of comparisons by name, as multiples of their bounds, from a file if there is one.

    An error that grows is wrong even within its bound. What is not in the file is added to `new`.
    """

    path: Path
    known: dict[str, dict[str, float]] = field(default_factory=dict)
    new: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            try:
                self.known = json.loads(self.path.read_text())
            except ValueError as error:
                raise ValueError(
                    f"{self.path.name} is no baseline: {error}."
                ) from error

    def held(self, report: Report, name: str) -> Report:
        if name not in self.known:
            self.new[name] = {row.name: row.ratio_a for row in report.rows}
            return report
        rows = (self._row(row, self.known[name].get(row.name)) for row in report.rows)
        return replace(report, rows=tuple(rows))

    def _row(self, row: Row, before: float | None) -> Row:
        if before is None or row.verdict not in PASSING:
            return row
        if row.ratio_a <= GREW * max(before, ORDINARY):
            return row
        reason = f"grew from {before:.2g} of its bound to {row.ratio_a:.2g}"
        return replace(row, verdict="A_WORSE", reason=reason)

    def write(self) -> None:
        """Add what is new; what is known stays as it is. If it passes, a report has only finite ratios."""
        if self.new:
            both = dict(sorted({**self.new, **self.known}.items()))
            self.path.write_text(json.dumps(both, indent=1) + "\n")


SESSION = Session()
