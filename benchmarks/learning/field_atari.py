"""Pong and Breakout at ten million frames: DQN, QR-DQN, IQN, FQF and PPO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.figures import Other
from benchmarks.learning.field import Field, Published, Rival, Run, peer_of
from benchmarks.peers.environment import SB3_GAMES

STEPS = 2_500_000
"""Ten million frames."""
TITLES = {"dqn": "DQN", "qr_dqn": "QR-DQN", "iqn": "IQN", "fqf": "FQF", "ppo": "PPO"}
PUBLISHED = {
    # Breakout after as many frames as here: `ZOO`, and Tianshou's mean of ten seeds, each tested in
    # ten games with 0.005 random actions; Pong after four times as many: the zoo, Tianshou's best
    "pong": {"dqn": 20.6, "qr_dqn": 20.5, "iqn": 20.3, "fqf": 20.7, "ppo": 21.0},
    "breakout": {"iqn": 288.0, "fqf": 282.0},
}
ZOO = {"dqn": 197.0, "qr_dqn": 149.0, "ppo": 88.0}
"""On Breakout after as many frames as here: the mean score of the zoo's runs while they trained,
over games between 9.5 and 10.5 million frames (164, 175 and 99 games of the `monitor.csv` files in
DLR-RM/rl-trained-agents; standard errors 8, 5 and 5)."""
TIANSHOU: dict[str, dict[str, Sequence[float]]] = {
    "pong": {
        "dqn": (-5.7, 20.0, 20.3, 20.3, 20.3),
        "qr_dqn": (-7.1, 20.1, 20.7, 20.7, 20.7),
        "iqn": (-9.7, 17.8, 17.0, 20.7, 20.7),
        "ppo": (-9.6, 5.7, 13.4, 16.2, 17.3),
    },
    "breakout": {
        "dqn": (28.4, 45.4, 64.2, 57.5, 75.9),
        "iqn": (37.0, 105.3, 174.4, 255.1, 288.2),
        "fqf": (27.5, 91.3, 157.4, 222.8, 281.9),
        "ppo": (11.3, 17.0, 26.4, 25.1, 32.1),
    },
}
"""After every 500,000 steps: means of ten seeds in thu-ml/tianshou, `examples/atari/benchmark`; on
Pong of those that had not won by 20 before."""
PEERS = ("ppo-breakout",)
"""Which Stable-Baselines3 runs here, too, in place of the zoo's single run."""
IN_ITS_GAMES = "ppo-breakout-sb3_games"
"""The same run in the games of Stable-Baselines3, where the algorithms alone differ."""
PONG, LOSES, WON = 18.0, 0.0, 19.5
TWIN_STEPS, TWIN_PROCESSES = 1_000_000, 8
"""Of twins, which learn nothing however long they take; two at once have 16 cores alone."""
GAMES, PROCESSES = 32, 4
"""Of a run: with so many games a step of all of them takes long enough that choosing actions on a
GPU counts little, and three runs at once keep 16 cores busy. Results do not depend on the
processes."""
ON_A_CORE: dict[str, Any] = {"device": "cpu", "env_workers": 1}
"""Where a run takes about two hours; in a lease of a GPU PPO is the slowest."""
PAPERS = 10_000_000
"""Steps over which the zoo's PPO lets its schedules fall; a quarter of them are made here."""
RANDOM = 0.01
"""Share of random actions in evaluations, with which the zoo's agents play; the paper has 0.05."""
FALLS: dict[str, Any] = {"epsilon_fraction": 0.4}
"""Epsilon falls over a million steps, as in the zoo."""
KNOBS: dict[str, dict[str, Any]] = {
    "dqn": FALLS,
    # Adam's epsilon is the default, which stored results of an earlier config name
    **{key: {**FALLS, "adam_eps": 1e-8} for key in ("qr_dqn", "iqn", "fqf")},
    "ppo": {"clip_schedule": {"kind": "linear", "over": PAPERS}},
}


def _changes(algo: str, game: str) -> dict[str, Any]:
    several: dict[str, Any] = {"num_envs": GAMES, "overlap_updates": True}
    several["checkpoint_minutes"] = 30.0  # a replay of images is large
    if algo == "ppo":  # rollouts of 8 games, as the packaged config has them
        schedule = {"kind": "linear", "over": PAPERS}
        several = {"lr_schedule": schedule, "checkpoint_minutes": 3.0}
        if game == "breakout":
            several |= ON_A_CORE
    elif game == "pong":
        several["early_stopping"] = {"target": WON}
    return {
        "env_kwargs": {"game": game, "protocol": "mnih2015", "random_actions": RANDOM},
        "total_timesteps": STEPS,
        "eval_interval": 500_000 if game == "breakout" else 250_000,
        "eval_episodes": 5,  # whole games, a thousand steps and more each
        "eval_max_steps": 10_000,  # a ball may fly to and fro for ever
        "env_workers": PROCESSES,
        "vectorization": "sync",
        **several,
    }


def _runs() -> list[Run]:
    runs = []
    for game, scores in PUBLISHED.items():
        for algo, title in TITLES.items():
            if game == "pong":
                known = Published(scores[algo], "after 10 million steps", same_budget=False)
            elif algo in ZOO:
                known = Published(ZOO[algo], "zoo, after as many frames", in_training=True)
            else:
                known = Published(scores[algo], "Tianshou, after as many frames")
            if algo in TIANSHOU[game]:
                steps = [500_000 * (i + 1) for i in range(len(TIANSHOU[game][algo]))]
                curve = Other(f"{title} of Tianshou", (steps, TIANSHOU[game][algo]))
                known = replace(known, curve=curve)
            changes = _changes(algo, game)
            job = f"{algo}-{game}"
            config = f"{algo}/breakout"
            run = Run(job, title, game.capitalize(), config, changes, KNOBS[algo])
            run = replace(run, published=known, drawn=algo == "ppo")
            if game == "pong":
                runs.append(replace(run, least=PONG))
            else:
                least = None if job in PEERS else ZOO.get(algo)
                runs.append(replace(run, least_in_training=least))
    in_its_games = {
        **_changes("ppo", "breakout"),
        "env_id": "benchmarks.peers.sb3_games:play",
        "env_kwargs": {"game": "breakout"},
        "train_env_kwargs": {"learning": True},
    }
    title = "PPO in Stable-Baselines3's games"
    same = Run(IN_ITS_GAMES, title, "Breakout", "ppo/breakout", in_its_games, KNOBS["ppo"])
    runs.append(replace(same, drawn=True, peer=SB3_GAMES))
    twins: dict[str, dict[str, Any]] = {
        "twin: no learning": {"lr": 1e-12},
        "twin: discount 0": {"gamma": 0.0},
    }
    for number, (title, knobs) in enumerate(twins.items()):
        job, changes = f"dqn-pong-twin{number}", _changes("dqn", "pong")
        changes |= {"total_timesteps": TWIN_STEPS, "env_workers": TWIN_PROCESSES}
        own = {**KNOBS["dqn"], **knobs}
        runs.append(Run(job, title, "Pong", "dqn/breakout", changes, own, most=LOSES))
    return runs


TEXT = (
    f"{STEPS:,} steps of four frames, by the rules of `mnih2015`: 1 to 30 no-op frames, no sticky "
    "actions, whole games; training clips rewards, and a lost life ends an episode for learning. "
    f"In evaluations {RANDOM:g} of the actions are random, as in Stable-Baselines3's zoo. Mean "
    "score of the last policy over 20 games, cut after 10,000 steps; PPO draws its actions. *In "
    "training* is the mean score of the games that ended in the last twentieth of the steps, "
    "exploration included. On Breakout the gates compare it with what single runs of the zoo "
    "scored in training after as many frames, and PPO's with Stable-Baselines3's runs here."
)
NOTES = (
    f"Value methods play {GAMES} games at once in {PROCESSES} processes, twins in "
    f"{TWIN_PROCESSES}, PPO 8 games. On Pong all but PPO end with the first evaluation over five "
    f"games that reaches {WON:g}; twins take a million steps.",
    "DQN and PPO have settings that the zoo publishes (its logs do not say which its runs had), "
    "QR-DQN, IQN and FQF those of DQN.",
    "The zoo's scores in training on Breakout, by the logs beside its agents, are 197 (DQN), 149 "
    "(QR-DQN) and 88 (PPO) with standard errors of 8, 5 and 5. Tianshou's means of ten seeds there "
    "are 76 (DQN), 288 (IQN), 282 (FQF) and 32 (PPO). Scores published for Pong are of four times "
    "these steps. Stable-Baselines3's DQN itself would take an hour for these frames on the H200's "
    "machine (2,820 frames/s, below).",
    "PPO on Breakout and Stable-Baselines3's, in its own games with the zoo's settings, ran on a "
    "core each of machines with two; two hours a run. Its two runs are further apart (81 and 66 in "
    "training) than ours (61 and 64). From equal weights and one rollout both learn the same, to a "
    "thousandth of what a layer changes (`tests/test_sb3.py`). Crossed, one seed each, not stored: "
    "ours in its games came to 78 in training (last policy 105, its own 116 and 59), and its "
    "algorithm in our games to 80. So neither the algorithm nor the games lower the score by "
    "themselves, and seeds are left as the likely reason. Known to differ: after a lost life the "
    "peer plays twelve frames by itself (idle, fire, right) and clears the stack of frames, ours "
    "presses fire for one. With half of the zoo's weight of the value loss ours came to 68 and 63, "
    "on a GPU.",
    "Stored runs with earlier settings: PPO on Pong had half of that weight. Evaluations of FQF on "
    "Breakout and of DQN and IQN on Pong had no random actions, and a policy that draws none then "
    "plays hardly different games. IQN on Pong and FQF had an update per ten steps in place of "
    "four, returns of three steps and 0.05 random actions in training, and FQF half the learning "
    "rate, with which it learned little.",
    "Seven runs with the settings above are not stored: their files were lost with the machines "
    "that held them. Their last policies had, by 20 games: FQF on Breakout 410, IQN on Breakout "
    "394 (seed 1); on Pong DQN 19.2 (seed 1), QR-DQN 19.2 (seed 1), FQF 16.9 after evaluations up "
    "to 18.4, and IQN 2.8 (seed 1) after evaluations up to 14.0, the last two below the gate. "
    "Another of FQF on Breakout had 397 over five games. An eighth, cut short, had 330 in training "
    "after 2,130,000 steps.",
    "Earlier trials on Breakout, not stored: QR-DQN and IQN with an update per ten steps came to "
    "103 and 113 in training; DQN and QR-DQN with returns of three steps and 0.01 random actions "
    "from 250,000 steps on to 29 and 50. DQN had 190 in training and, by the same policy, 97 in "
    "evaluations without random actions. On Pong PPO with separate networks and a clipped value "
    "came to -10.",
)
SUITE = Field(
    "field_atari",
    "Atari at ten million frames",
    TEXT,
    _runs(),
    seeds=2,
    episodes=20,
    training=True,
    headline="Scores on Atari after ten million frames, and in brackets those that others publish",
    notes=NOTES,
    peers=PEERS,
    rivals=[
        *(Rival(f"{algo}-breakout", "dqn-breakout") for algo in ("qr_dqn", "iqn", "fqf")),
        Rival(IN_ITS_GAMES, peer_of(PEERS[0]), in_training=True),
    ],
).suite()
