"""What estimates of a policy's value are worth, where the value is exact: ICU-Sepsis.

Three questions: how large the errors are at 10,000 episodes, whether twelve policies are ranked
rightly, and how often intervals at 1,000 episodes hold the truth. Needs the extra `icu-sepsis`.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.markdown import number, table
from benchmarks.suites import Options, Section, Suite

NAME = "ope"
JOB = "benchmarks.learning.ope_job"
SEEDS = (0, 1, 2, 3, 4)
REPLICATIONS = 100
SOFT = (0.5, 0.9)
SHARES = (0.0, *SOFT)
RANKED = tuple(round(float(x), 3) for x in np.linspace(0.0, 1.0, 12))
ESTIMATORS = ("fqe", "wdr", "wis", "pdwis", "is", "pdis")
FEW = 0.8
"""Coverage below which an interval of 95 % is no interval."""


def _spec(options: Options, **values: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "episodes": 10_000, "shares": SHARES, "recorded": True, "updates": 6_000,
        "replicates": 4, "estimators": ESTIMATORS, **values,
    }  # fmt: skip
    if options.quick:
        spec |= {"episodes": 60, "updates": 20, "replicates": 2}
    return {key: list(x) if isinstance(x, tuple) else x for key, x in spec.items()}


def ope_jobs(options: Options) -> list[Job]:
    if find_spec("icu_sepsis") is None:
        return []
    seeds = options.seeds if options.quick else SEEDS
    jobs = [Job(NAME, "error", seed, JOB, _spec(options), cost=400) for seed in seeds]
    ranking = _spec(options, shares=RANKED, estimators=("fqe",), replicates=2)
    jobs.append(Job(NAME, "ranking", seeds[0], JOB, ranking, cost=900))
    coverage = _spec(
        options, episodes=1_000, shares=SOFT, updates=3_000, replicates=16, recorded=True
    )
    replications = options.seeds if options.quick else range(100, 100 + REPLICATIONS)
    jobs += [Job(NAME, "coverage", seed, JOB, coverage, cost=200) for seed in replications]
    return jobs


# --- report ----------------------------------------------------------------------------------


def _policies(records: Records, job: str) -> dict[float, list[dict[str, Any]]]:
    """By share of the optimal policy, one per seed."""
    found: dict[float, list[dict[str, Any]]] = {}
    for record in records.of(job):
        for one in record.result["policies"]:
            found.setdefault(one["share"], []).append(one)
    return found


def _rmse(found: list[dict[str, Any]], name: str) -> float:
    errors = [one["estimates"][name]["value"] - one["truth"] for one in found]
    return float(np.sqrt(np.mean(np.square(errors))))


def _ranks(values: list[float]) -> Any:
    return np.argsort(np.argsort(values))


def ope_report(records: Records, figures: Path) -> Section:
    verdicts: list[gates.Verdict] = []
    parts = [
        "Networks on the 47 features of a state; the probabilities of the log are known; gamma 1 "
        "over 100 steps. *share* is that of the optimal policy, the rest is the clinicians'."
    ]
    errors = _policies(records, "error")
    if errors:
        rows = []
        for share, found in sorted(errors.items()):
            rmse = {name: _rmse(found, name) for name in ESTIMATORS}
            size = float(np.mean([one["effective_size"] for one in found]))
            rows.append([f"{share:g}", number(found[0]["truth"], 3), number(size),
                         *(number(rmse[name], 3) for name in ESTIMATORS)])  # fmt: skip
            if share in SOFT:
                verdicts.append(gates.at_most(f"fqe, share {share:g}, error", [rmse["fqe"]], 0.03))
                verdicts.append(gates.at_most(f"wdr, share {share:g}, error", [rmse["wdr"]], 0.05))
            else:
                worst = [max(rmse.values())]
                verdicts.append(gates.at_most("on-policy, the largest error", worst, 0.01))
        heads = ["share", "exact value", "effective episodes", *ESTIMATORS]
        parts.append("Root mean square error, 10,000 episodes, five logs:\n\n" + table(heads, rows))
    ranking = _policies(records, "ranking")
    if ranking:
        truth = [found[0]["truth"] for found in ranking.values()]
        values = [found[0]["estimates"]["fqe"]["value"] for found in ranking.values()]
        spearman = float(np.corrcoef(_ranks(truth), _ranks(values))[0, 1])
        regret = max(truth) - truth[int(np.argmax(values))]
        verdicts.append(gates.at_least("ranking of 12 policies, Spearman", [spearman], 0.85))
        verdicts.append(gates.at_most("ranking of 12 policies, regret", [regret], 0.01))
        parts.append(
            f"Twelve policies between {min(truth):.3f} and {max(truth):.3f}, ranked by FQE: "
            f"Spearman {spearman:.2f}, regret of the first {regret:.4f}."
        )
    coverage = _policies(records, "coverage")
    if coverage:
        rows = []
        for share, found in sorted(coverage.items()):
            for name in ("fqe", "wdr", "wis", "pdwis"):
                held = [
                    one["estimates"][name]["low"] <= one["truth"] <= one["estimates"][name]["high"]
                    for one in found
                ]
                widths = [one["estimates"][name]["high"] - one["estimates"][name]["low"]
                          for one in found]  # fmt: skip
                said = "" if np.mean(held) >= FEW else "not to be trusted"
                rows.append([f"{share:g}", name, str(len(found)), f"{np.mean(held):.0%}",
                             number(float(np.mean(widths)), 3), said])  # fmt: skip
        heads = ["share", "estimator", "replications", "covered", "mean width", ""]
        parts.append("Nominal 95 % intervals at 1,000 episodes:\n\n" + table(heads, rows))
    gate_rows = [[one.gate, one.text] for one in verdicts]
    if gate_rows:
        parts.append(table(["gate", "result"], gate_rows))
    return Section("\n\n".join(parts), tuple(verdicts))


SUITE = Suite(NAME, "Off-policy evaluation on an exact process", ope_jobs, ope_report)
