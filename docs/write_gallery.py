"""Makes the reports of docs/gallery.md anew, with an image of each: `python docs/write_gallery.py`.

Names of reports as arguments make only those. Trains for about two minutes on one core. The images
need the extra `dev` and a Chromium.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
GALLERY = DOCS / "gallery"

DATA = "env_id=CartPole-v1 dataset=cartpole-mixed total_updates=1500 eval_interval=150"
SMALL = "algo_kwargs.hidden_sizes=[64,64]"

COMMANDS = {
    "comparison": (
        f"train awr {DATA} {SMALL} algo_kwargs.policy_lr=1e-3 algo_kwargs.temperature=0.2"
        " run_name=awr --seeds 3",
        f"train bc {DATA} {SMALL} algo_kwargs.lr=1e-3 run_name=bc --seeds 3",
        "report runs/awr runs/bc --data --out comparison.html",
    ),
    "simulator": (
        "train ppo/cartpole total_timesteps=30000 eval_interval=3000 profile=true run_name=ppo",
        "report runs/ppo --videos --out simulator.html",
    ),
    "log": (
        "train iql env_id=null dataset=log.npz dataset.split.holdout=0.2 total_updates=1500"
        f" eval_interval=150 {SMALL} algo_kwargs.gamma=0.9 run_name=iql",
        "ope runs/iql --data test.npz --updates 1000 --replicates 4",
        "report runs/iql --data --out log.html",
    ),
}


def make_ward_logs(folder: Path) -> None:
    """The logs of the tutorial about data without a simulator."""
    page = (DOCS / "tutorials" / "own_data.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n# ward\.py\n(.*?)^```", page, re.M | re.S)[0]
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)


def draw(page: Path) -> None:
    """The top of a page as an image."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        tab = browser.new_page(viewport={"width": 1000, "height": 750})
        tab.goto(page.as_uri())
        tab.screenshot(path=page.with_suffix(".png"))
        browser.close()


def main() -> None:
    GALLERY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_ward_logs(folder)
        for report in sys.argv[1:] or COMMANDS:
            for command in COMMANDS[report]:
                words = [sys.executable, "-m", "rl_training", *command.split()]
                subprocess.run(words, cwd=folder, check=True)
            page = (folder / f"{report}.html").read_text(encoding="utf-8")
            made = page.replace(f"{folder.resolve()}/", "")  # the temporary folder
            (GALLERY / f"{report}.html").write_text(made, encoding="utf-8")
            draw(GALLERY / f"{report}.html")


if __name__ == "__main__":
    main()
