"""Published scores by which returns on different tasks are compared: 0 is the low one, 100 the
high one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from rl_training.envs.atari_rules import ATARI_ID
from rl_training.experiment.trust import WRAPPERS


class Reference(NamedTuple):
    """Two scores of a task."""

    name: str
    """Of the scale: that of the high score."""
    low: float
    """Of random actions."""
    high: float

    def normalized(self, score: float) -> float:
        """Percent of the way from the low to the high score."""
        return 100.0 * (score - self.low) / (self.high - self.low)


HUMAN, D4RL = "human", "D4RL"

# Wang et al. 2016, after Mnih et al. 2015: random play and a professional tester, no-op starts,
# whole games of at most 30 minutes
_GAMES: Mapping[str, tuple[float, float]] = {
    "alien": (227.8, 7127.7),
    "amidar": (5.8, 1719.5),
    "assault": (222.4, 742.0),
    "asterix": (210.0, 8503.3),
    "asteroids": (719.1, 47388.7),
    "atlantis": (12850.0, 29028.1),
    "bankheist": (14.2, 753.1),
    "battlezone": (2360.0, 37187.5),
    "beamrider": (363.9, 16926.5),
    "berzerk": (123.7, 2630.4),
    "bowling": (23.1, 160.7),
    "boxing": (0.1, 12.1),
    "breakout": (1.7, 30.5),
    "centipede": (2090.9, 12017.0),
    "choppercommand": (811.0, 7387.8),
    "crazyclimber": (10780.5, 35829.4),
    "defender": (2874.5, 18688.9),
    "demonattack": (152.1, 1971.0),
    "doubledunk": (-18.6, -16.4),
    "enduro": (0.0, 860.5),
    "fishingderby": (-91.7, -38.7),
    "freeway": (0.0, 29.6),
    "frostbite": (65.2, 4334.7),
    "gopher": (257.6, 2412.5),
    "gravitar": (173.0, 3351.4),
    "hero": (1027.0, 30826.4),
    "icehockey": (-11.2, 0.9),
    "jamesbond": (29.0, 302.8),
    "kangaroo": (52.0, 3035.0),
    "krull": (1598.0, 2665.5),
    "kungfumaster": (258.5, 22736.3),
    "montezumarevenge": (0.0, 4753.3),
    "mspacman": (307.3, 6951.6),
    "namethisgame": (2292.3, 8049.0),
    "phoenix": (761.4, 7242.6),
    "pitfall": (-229.4, 6463.7),
    "pong": (-20.7, 14.6),
    "privateeye": (24.9, 69571.3),
    "qbert": (163.9, 13455.0),
    "riverraid": (1338.5, 17118.0),
    "roadrunner": (11.5, 7845.0),
    "robotank": (2.2, 11.9),
    "seaquest": (68.4, 42054.7),
    "skiing": (-17098.1, -4336.9),
    "solaris": (1236.3, 12326.7),
    "spaceinvaders": (148.0, 1668.7),
    "stargunner": (664.0, 10250.0),
    "surround": (-10.0, 6.5),
    "tennis": (-23.8, -8.3),
    "timepilot": (3568.0, 5229.2),
    "tutankham": (11.4, 167.6),
    "upndown": (533.4, 11693.2),
    "venture": (0.0, 1187.5),
    "videopinball": (16256.9, 17667.9),
    "wizardofwor": (563.5, 4756.5),
    "yarsrevenge": (3092.9, 54576.9),
    "zaxxon": (32.5, 9173.3),
}
# Fu et al. 2020, for version 2 of these tasks
_LOCOMOTION: Mapping[str, tuple[float, float]] = {
    "HalfCheetah": (-280.178953, 12135.0),
    "Hopper": (-20.272305, 3234.3),
    "Walker2d": (1.629008, 4592.3),
}
_OTHER_SCORES = ("clip_rewards", "life_loss", "max_frames")
"""Rules of games that, where they are set, make a return no score of a whole game."""
_ALE_KEYS = {"render_mode", "frameskip", "repeat_action_probability", "obs_type"}
"""Arguments of the ALE's own environments that leave a game the same."""


def game_reference(game: str) -> Reference | None:
    """Of an Atari game, however its name is written."""
    scores = _GAMES.get(game.replace("_", "").lower())
    return None if scores is None else Reference(HUMAN, *scores)


def reference_of(env_id: str, env_kwargs: Mapping[str, Any]) -> Reference | None:
    """Of a task as it was published; None where arguments or wrappers may change its returns."""
    if env_id == ATARI_ID:
        if env_kwargs.get(WRAPPERS) or any(env_kwargs.get(key) for key in _OTHER_SCORES):
            return None
        return game_reference(str(env_kwargs.get("game")))
    ale = re.fullmatch(r"ALE/([A-Za-z]+)-v5|([A-Za-z]+)NoFrameskip-v4", env_id)
    if ale is not None:
        return game_reference(ale[1] or ale[2]) if set(env_kwargs) <= _ALE_KEYS else None
    name, _, version = env_id.rpartition("-v")
    if name in _LOCOMOTION and version.isdecimal() and set(env_kwargs) <= {"render_mode"}:
        return Reference(D4RL, *_LOCOMOTION[name])
    return None
