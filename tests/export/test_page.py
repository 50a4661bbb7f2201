"""The page of the server, in a real browser."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from rl_training.export.exported import load_policy

from .serving import served

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
TOKEN = "a token of some length"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_person_tries_an_observation(
    bc_export: Path, dreamer_export: Path, parts_export: Path
) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    action = load_policy(bc_export)([0.5, -0.5, 2.0])[0].item()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console", lambda said: problems.append(said.text) if said.type == "error" else None
        )
        expect = playwright.expect

        with served(bc_export) as (address, _):
            page.goto(f"http://{address}/")
            expect(page.locator("#title")).to_have_text("bc on Pendulum-v1")
            expect(page.locator("#inputs")).to_contain_text("float32 [batch, 3]")
            expect(page.locator("#outputs")).to_contain_text("-2")
            for i, value in enumerate(("0.5", "-0.5", "2")):
                page.fill(f"#x{i}", value)
            page.click("#act")
            expect(page.locator("#action")).to_contain_text(f"{action:.4f}"[:6])
            assert not problems, problems
            page.fill("#x2", "20")
            page.click("#act")
            expect(page.locator("#error")).to_contain_text("outside [-8")
            page.fill("#x2", "two")
            page.click("#act")
            expect(page.locator("#error")).to_have_text("component 2 is no number")
            page.click("#sample")
            page.click("#act")
            expect(page.locator("#action")).to_contain_text("[")

        with served(dreamer_export, "--host", "0.0.0.0", token=TOKEN) as (address, _):
            page.goto(f"http://{address}/")
            expect(page.locator("#about")).to_have_text("This server needs its token.")
            page.fill("#token", TOKEN)
            page.click("#token-form button")
            expect(page.locator("#try")).to_be_visible()
            for step in (1, 2):
                page.click("#act")
                expect(page.locator("#action")).to_contain_text(f"at step {step}")
            page.click("#restart")
            page.click("#act")
            expect(page.locator("#action")).to_contain_text("at step 1")

        problems.clear()
        with served(parts_export) as (address, _):
            page.goto(f"http://{address}/")
            expect(page.locator("#inputs")).to_contain_text("observation.pair.0")
            page.get_by_label("ward (2 to 5)").select_option("4")
            page.get_by_label("pair.1 (0 to 9)").fill("3.5")
            page.get_by_label("pair.0 1 (0 to 2)").select_option("2")
            page.click("#act")
            parts = {
                "table": np.zeros((2, 3)),
                "ward": 4,
                "flags": np.zeros(3),
                "pair": ([0, 2], 3.5),
            }
            chosen = load_policy(parts_export)(parts)[0]
            expect(page.locator("#action")).to_have_text(str(chosen))
            page.click("#sample")
            page.click("#act")
            expect(page.locator("#error")).to_have_text("")
            assert not problems, problems
        browser.close()
