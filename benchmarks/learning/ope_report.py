"""What the results of the suite `ope` say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import gates
from benchmarks.jobs import Records
from benchmarks.markdown import NO_VALUE, number, table
from benchmarks.peers.environment import D3RLPY_VERSION
from benchmarks.suites import Section

NAME = "ope"
SOFT = (0.5, 0.9)
SHARES = (0.0, *SOFT)
TASKS = {
    "pendulum": ("Pendulum-v1", "pendulum-mixed", 0.99),
    "hopper": ("Hopper-v5", "hopper-mixed-zoo.npz", 0.995),
}
"""Environment, data and discount of the candidates."""
FEW = 0.8
"""Coverage below which an interval of 95 % is no interval."""


def ope_report(records: Records, figures: Path) -> Section:
    parts = [_errors(records), _tables(records), _ranking(records), _coverage(records)]
    parts += [_candidates(records, task) for task in TASKS]
    parts += [_support(records), _abstaining(records), _cost(records)]
    verdicts = tuple(verdict for part in parts for verdict in part.verdicts)
    text = [part.markdown for part in parts if part.markdown]
    text.append(gates.listing(verdicts))
    return Section("\n\n".join(text), verdicts, " ".join(part.short for part in parts).strip())


def _policies(records: Records, job: str) -> list[dict[str, Any]]:
    return [one for record in records.of(job) for one in record.result["policies"]]


def _rmse(values: Sequence[float], truths: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(np.subtract(values, truths)))))


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Correlation of ranks, without ties."""
    ranks = [np.argsort(np.argsort(one)).astype(np.float64) for one in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _errors(records: Records) -> Section:
    rows, verdicts, said = [], [], []
    columns: Sequence[str] = ()
    updates, logs = 0, set[int]()
    for share in SHARES:
        found = _policies(records, f"error-{share:g}")
        peer = _policies(records, f"peer-{share:g}")
        if not found:
            continue
        columns = list(found[0]["estimates"])
        updates = records.of(f"error-{share:g}")[0].spec["updates"]
        truth = [one["truth"] for one in found]
        rmse = {
            name: _rmse([one["estimates"][name]["value"] for one in found], truth)
            for name in columns
        }
        known = [one for one in peer if one["value"] is not None]
        theirs = None
        if known:
            theirs = _rmse([one["value"] for one in known], [one["truth"] for one in known])
        size = float(np.mean([one["effective_size"] for one in found]))
        shown = [number(rmse[name], 3) for name in columns]
        logs.add(len(found))
        rows.append([f"{share:g}", number(truth[0], 3), number(size), *shown,
                     NO_VALUE if theirs is None else number(theirs, 3)])  # fmt: skip
        if share in SOFT:
            verdicts.append(gates.at_most(f"fqe, share {share:g}, error", [rmse["fqe"]], 0.03))
            verdicts.append(gates.at_most(f"wdr, share {share:g}, error", [rmse["wdr"]], 0.05))
            if theirs is not None:
                said.append(f"{rmse['fqe']:.3f} for an exact {truth[0]:.3f} ({theirs:.3f})")
            ratio = [] if theirs is None else [rmse["fqe"] / theirs]
            verdicts.append(gates.at_most(f"fqe over d3rlpy's, share {share:g}", ratio, 0.5))
        else:
            worst = [max(rmse.values())]
            verdicts.append(gates.at_most("on-policy, the largest error", worst, 0.01))
    if not rows:
        return Section("", ())
    heads = ["share", "exact value", "effective episodes", *columns, f"d3rlpy {D3RLPY_VERSION}"]
    text = (
        "### ICU-Sepsis\n\nNetworks on the 47 features of a state; the probabilities of the log "
        f"are known; gamma 1 over 100 steps, {updates:,} updates. *share* is that of the optimal "
        "policy, the rest is the clinicians'. d3rlpy's FQE has its defaults, standardised "
        "observations, gamma 1 and 10,000 updates; its targets take one action, here drawn "
        "from the policy. States repeat here, so *mb* counts transitions; results from before "
        "it did, whose *mb* has errors above 0.1, fitted normal distributions. *wdr* cuts weights "
        "at the root of the number of episodes, *wdr_full* does not.\n\n"
        f"Root mean square error, 10,000 episodes, {' or '.join(map(str, sorted(logs)))} logs:\n\n"
    )
    short = (
        "Error of fitted Q evaluation on a log of clinicians, and in brackets of d3rlpy's: "
        f"{', '.join(said)}."
    )
    return Section(text + table(heads, rows), tuple(verdicts), short if said else "")


def _tables(records: Records) -> Section:
    rows, names, logs = [], ("fqe", "wdr", "wdr_full", "wis"), 0
    for job in sorted({one.job for one in records.all if one.job.startswith("tables-")}):
        record = records.of(job)[0]
        found, truth = record.result["logs"], record.result["truth"]
        errors = [_rmse([one[name] for one in found], [truth] * len(found)) for name in names]
        size = float(np.median([one["effective_size"] for one in found]))
        rows.append([f"{record.spec['share']:g}", f"{record.spec['episodes']:,}", number(size, 1),
                     *(number(error, 3) for error in errors)])  # fmt: skip
        logs = len(found)
    if not rows:
        return Section("", ())
    heads = ["share", "episodes", "effective, median", *names]
    text = (
        f"Tables in the place of networks, {logs} other logs, root mean square error. A few "
        "episodes carry most of the weight, and the outcome of the last step of one of them is "
        "noise that no critic foresees:\n\n"
    )
    return Section(text + table(heads, rows), ())


def _ranking(records: Records) -> Section:
    jobs = sorted({record.job for record in records.all if record.job.startswith("rank-")})
    found = [one for job in jobs for one in _policies(records, job)]
    if len(found) < 3:
        return Section("", ())
    truth, values = [one["truth"] for one in found], [one["value"] for one in found]
    same, regret = spearman(truth, values), max(truth) - truth[int(np.argmax(values))]
    return Section(
        f"{len(found)} policies between {min(truth):.3f} and {max(truth):.3f}, ranked by FQE on "
        f"10,000 episodes: Spearman {same:.2f}, regret of the first {regret:.4f}.",
        (
            gates.at_least("ranking of 12 policies, Spearman", [same], 0.85),
            gates.at_most("ranking of 12 policies, regret", [regret], 0.01),
        ),
    )


def _coverage(records: Records) -> Section:
    rows = []
    for share in SOFT:
        for name, intervals in _intervals(records, share).items():
            held = float(np.mean([low <= truth <= high for truth, low, high in intervals]))
            if name == BOUND:
                below = float(np.mean([truth - low for truth, low, _ in intervals]))
                width, said = f"{number(below, 3)} below", ""
            else:
                width = number(float(np.mean([high - low for _, low, high in intervals])), 3)
                said = "" if held >= FEW else "not to be trusted"
            rows.append([f"{share:g}", name, str(len(intervals)), f"{held:.0%}", width, said])
    if not rows:
        return Section("", ())
    heads = ["share", "estimator", "replications", "covered", "mean width", ""]
    text = "Nominal 95 % intervals at 1,000 episodes; *mb* with policies as tables:\n\n"
    if fitted := records.of("coverage"):
        spec = fitted[0].spec
        widths = " and ".join(map(str, spec["hidden_sizes"]))
        text = (
            f"Nominal 95 % intervals at {spec['episodes']:,} episodes (critics of {widths} units, "
            f"{spec['updates']:,} updates, {spec['replicates']} replicates; *mb* with policies as "
            "tables):\n\n"
        )
    return Section(text + table(heads, rows), ())


BOUND = "bound by empirical Bernstein"


def _intervals(records: Records, share: float) -> dict[str, list[tuple[float, float, float]]]:
    """Exact value, low and high end of every replication, by estimator."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for record in records.of("coverage"):
        for one in record.result["policies"]:
            if one["share"] != share:
                continue
            ends = {name: (x["low"], x["high"]) for name, x in one["estimates"].items()}
            ends.pop("mb", None)  # it has replications of its own
            if one.get("lower_bound") is not None:
                ends[BOUND] = (one["lower_bound"], np.inf)
            for name, (low, high) in ends.items():
                found.setdefault(name, []).append((one["truth"], low, high))
    for record in records.of(f"counted-{share:g}"):
        logs = record.result["logs"]
        found["mb"] = [(record.result["truth"], one["low"], one["high"]) for one in logs]
    return found


RANKS = ["by", "Spearman, return", "regret", "Spearman, discounted", "regret"]


def ranked(values: Sequence[float], truth: Sequence[float]) -> tuple[float, float]:
    """Spearman correlation with the truth, and the regret of the first one, of the range."""
    lost = max(truth) - truth[int(np.argmax(values))]
    return spearman(truth, values), lost / (max(truth) - min(truth))


def _candidates(records: Records, task: str) -> Section:
    jobs = sorted({one.job for one in records.all if one.job.startswith(f"{task}-")})
    found = [record for job in jobs for record in records.of(job)]
    if len(found) < 3:
        return Section("", ())
    env_id, data, gamma = TASKS[task]
    truth = [record.result["return"] for record in found]
    worth = [record.result["discounted"] for record in found]
    columns: dict[str, list[float]] = {
        name: [record.result["estimates"][name][0] for record in found]
        for name in found[0].result["estimates"]
    }
    peer = [record.result["peer"] for record in found]
    if None not in peer:
        columns[f"d3rlpy {D3RLPY_VERSION}"] = peer
    rows, verdicts = [], []
    for name, values in {**columns, "exact discounted return": worth}.items():
        (same, regret), (same_worth, regret_worth) = (
            ranked(values, other) for other in (truth, worth)
        )
        rows.append([name, number(same, 2), f"{regret:.0%}", number(same_worth, 2),
                     f"{regret_worth:.0%}"])  # fmt: skip
        if name == "fqe":
            verdicts.append(gates.at_least(f"{task}, Spearman", [same], 0.7))
            verdicts.append(gates.at_most(f"{task}, regret over the range", [regret], 0.1))
    listed = [
        [record.job.removeprefix(f"{task}-"), number(record.result["return"]),
         number(record.result["discounted"], 1), f"{record.result['unusual']:.0%}",
         *(number(values[i], 1) for values in columns.values())]
        for i, record in enumerate(found)
    ]  # fmt: skip
    heads = ["candidate, updates", "return", "discounted", "unusual", *columns]
    text = (
        f"### Candidates on {data.removesuffix('.npz')}\n\nTrained on every second episode, judged "
        f"on the others; gamma {gamma:g}; {env_id}, 30 episodes each.\n\n"
        f"{table(heads, listed)}\n\nRanks by each estimate beside those by the return, which the "
        "gates ask for, and by the discounted return, which is what is estimated; *regret* is of "
        f"the range.\n\n{table(RANKS, rows)}"
    )
    return Section(text, tuple(verdicts))


def _support(records: Records) -> Section:
    rows, verdicts = [], []
    for task in ("hopper", "halfcheetah"):
        job = f"support-{task}"
        random, p = records.values(job, "random"), records.values(job, "p")
        if not random:
            continue
        own = float(np.mean(records.values(job, "own")))
        rows.append([task, str(len(p)), f"{np.mean(random):.0%}", f"{own:.1%}",
                     number(min(p), 3), number(float(np.median(p)), 3)])  # fmt: skip
        verdicts.append(gates.at_least(f"{task}, random actions unusual", random, 0.8))
        verdicts.append(gates.at_least(f"{task}, KS p, median", [float(np.median(p))], 0.01))
    if not rows:
        return Section("", ())
    heads = ["data", "splits", "random actions unusual", "logged ones", "KS p, least", "median"]
    text = "### Support\n\nFitted on half of the episodes, asked about the others.\n\n"
    return Section(text + table(heads, rows), tuple(verdicts))


def _abstaining(records: Records) -> Section:
    kept = records.values("abstaining", "abstaining")
    if not kept:
        return Section("", ())
    plain = records.values("abstaining", "plain")
    clinicians = records.values("abstaining", "clinicians")[0]
    fell = float(np.mean(records.values("abstaining", "fallbacks")))
    text = (
        f"### Abstaining\n\nIQL on {len(kept)} draws of 1,000 episodes: exact value "
        f"{np.mean(plain):.4f} on the mean, {min(plain):.4f} at worst; abstaining below the 5 % "
        f"quantile {np.mean(kept):.4f} and {min(kept):.4f}, in {fell:.0%} of all states. The "
        f"clinicians are worth {clinicians:.4f}."
    )
    gate = gates.every_seed_at_least("abstaining, exact value", kept, round(clinicians - 0.005, 4))
    return Section(text, (gate,))


def _cost(records: Records) -> Section:
    rows, verdicts = [], []
    for device, most in (("cpu", 12.0), ("cuda", 3.0)):
        found = records.of(f"cost-{device}")
        if not found:
            continue
        result = found[0].result
        ratio = result["ratio"]
        parts = result["parts"].values()
        for what, key, times in (("updates", "update", result["updates"]), ("solved", "solve", 1)):
            shown = [f"{times * one[key]:.1f} s" for one in parts]
            rows.append([device, what, *shown, number(_ratio(parts, key), 1)])
        shown = [f"{one:.1f} s" for one in result["seconds"].values()]
        rows.append([device, "whole fit", *shown, f"{ratio:.1f}"])
        verdicts.append(gates.at_most(f"32 replicates over one, {device}", [ratio], most))
    if not rows:
        return Section("", ())
    heads = ["device", "what", "one critic", "32 replicates", "ratio"]
    text = (
        "### Cost of replicates\n\nData of HalfCheetah's sizes, the critics that `ope` fits. On "
        "one core matrix products take nearly all of the time, and 32 critics need 32 times as "
        "many; a GPU has room for them, but last layers are solved one after the other. The GPU's "
        "figures are from before a product by the identity and unused factors were taken out of "
        "that; other runs shared the machine's processor.\n\n"
    )
    return Section(text + table(heads, rows), tuple(verdicts))


def _ratio(parts: Iterable[Mapping[str, float]], key: str) -> float:
    first, last = (one[key] for one in parts)
    return last / first
