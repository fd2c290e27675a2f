"""The answers of a run as a JSON document, for programs that need no figures of single cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.report.model import report_view
from harness.report.terminal import finding_lists
from harness.results import Run


def answers_json(run: Run, page: Path) -> dict[str, Any]:
    """Warnings, the answer for each disk and use, and what exceeds or is void. results.json has all figures."""
    view = report_view(run)
    return {
        "run": run.run.id,
        "status": run.run.status,
        "profile": run.run.profile,
        "host": run.lab.host,
        "representative": run.lab.representative,
        "warnings": [f"{banner.title}: {banner.text}" for banner in view.banners],
        "sections": [
            {
                "name": section.name,
                "headline": section.headline.sentence,
                "details": list(section.headline.details),
                "answers": [
                    {
                        "use": answer.title,
                        "mode": answer.take or None,
                        "equal": [each.mode for each in answer.answer.equals],
                        "undecided": [each.mode for each in answer.open],
                        "sentence": answer.sentence,
                    }
                    for answer in section.answers
                ],
            }
            for section in view.sections
        ],
        "findings": dict(finding_lists(view.verdicts)),
        "cells": {str(outcome): number for outcome, number in view.counts.items()},
        "report": str(page),
    }
