"""Report, explorer and start page in a real headless browser, compared with the library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
NEEDED = {"chromium": CHROMIUM, "chromedriver (Debian: chromium-driver)": DRIVER}
ABSENT = [program for program, path in NEEDED.items() if path is None]
pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(bool(ABSENT), reason=f"not on the path: {', '.join(ABSENT)}"),
]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
)  # fmt: skip


def people() -> pd.DataFrame:
    rng = np.random.default_rng(7)
    sex = rng.choice(["Male", "Female"], 500)
    age = rng.normal(np.where(sex == "Male", 45.0, 35.0), 8.0)
    visits = rng.poisson(np.where(sex == "Male", 1.0, 4.0))
    return pd.DataFrame({"age": age, "sex": sex, "visits": visits, "id": np.arange(500)})


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = people()
    parts = {"clinic": rows[["id", "age", "sex"]], "registry": rows[["id", "visits"]]}
    file = tmp_path_factory.mktemp("browser") / "fed.fc"
    fc.federate(parts, id="id", label="sex", learner="mixture", agreement="product").save(file)
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=str(DRIVER))
    made = webdriver.Chrome(options=options, service=service)
    made.set_script_timeout(120)
    yield made
    made.quit()


@pytest.fixture(scope="module")
def explorer(fed: Path) -> Iterator[str]:
    with exploring(fed) as address:
        yield address


@contextmanager
def exploring(model: Path) -> Iterator[str]:
    """The address of a model's explorer, as long as the block runs."""
    command = [sys.executable, "-m", "fedcircuits", "explore", str(model), "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["explore"]
    finally:
        process.terminate()
        process.wait(timeout=60)


def looks(browser: Any, width: int, scheme: str) -> None:
    """A window of that width that prefers light or dark pages."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})


def complaints(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] != "INFO"]


def wait_for(browser: Any, script: str) -> Any:
    """What a script returns once it is neither null nor false."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 30).until(lambda b: b.execute_script(f"return {script}"))


def shares(browser: Any, name: str) -> list[float]:
    """The percentages that the bars of a variable name."""
    script = (
        f"return [...document.getElementById('v-{name}').querySelectorAll('.hit')]"
        ".map((e) => e.getAttribute('aria-label'))"
    )
    texts = browser.execute_script(script)
    return [float(t.rpartition(": ")[2].partition(" %")[0].split()[0]) / 100 for t in texts]


def opened(browser: Any, address: str) -> None:
    browser.get("about:blank")
    browser.get(address)
    wait_for(browser, "document.querySelectorAll('.card svg').length === 3")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_explorer_moves_with_evidence_and_agrees_with_the_library(
    browser: Any, explorer: str, fed: Path, width: int, scheme: str
) -> None:
    looks(browser, width, scheme)
    opened(browser, explorer)
    model = fc.load(fed)
    before = shares(browser, "sex")
    assert before == pytest.approx(
        model.predict_proba(pd.DataFrame(index=[0]), "sex").iloc[0], abs=1e-3
    )
    browser.execute_script(
        "const m = document.querySelector('[aria-label=\"highest age\"]');"
        "m.value = '36'; m.dispatchEvent(new Event('change'));"
    )
    wait_for(browser, "document.getElementById('v-age').classList.contains('set')")
    low = browser.execute_script("return state.given.age.between[0]")
    event = {"age": fc.between(low, 36)}
    row = pd.DataFrame({"age": pd.Series([fc.between(low, 36)])})
    assert shares(browser, "sex") == pytest.approx(
        model.predict_proba(row, "sex").iloc[0], abs=1e-3
    )
    assert shares(browser, "sex") != pytest.approx(before, abs=0.05)
    text = browser.execute_script("return document.getElementById('probability').textContent")
    assert float(text.split()[0]) / 100 == pytest.approx(model.probability(event), abs=1e-3)
    # The link keeps the state and no token.
    assert "token" not in browser.current_url
    assert "between" in browser.current_url
    # Nothing is wider than the window.
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert complaints(browser) == []


def test_the_explorer_asks_for_a_token_that_is_not_in_the_link(browser: Any, explorer: str) -> None:
    looks(browser, 390, "light")
    address, _, token = explorer.partition("#token=")
    browser.get(address)
    browser.execute_script("sessionStorage.clear()")
    browser.get("about:blank")
    browser.get(address)
    wait_for(browser, "!document.getElementById('enter').hidden")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    say = "document.getElementById('token').value = arguments[0]; "
    say += "document.getElementById('enter').requestSubmit();"
    browser.execute_script(say, "wrong")
    wait_for(browser, "document.getElementById('error').textContent.includes('not the token')")
    browser.execute_script(say, token)
    wait_for(browser, "document.querySelectorAll('.card svg').length === 3")
    assert browser.execute_script("return document.getElementById('enter').hidden")
    assert "token" not in browser.current_url
    complaints(browser)  # the two refusals, which the browser notes


def test_the_explorer_works_from_the_keyboard(browser: Any, explorer: str) -> None:
    from selenium.webdriver.common.keys import Keys

    looks(browser, 1280, "light")
    opened(browser, explorer)
    bar = browser.find_element("css selector", "#v-sex .hit")
    bar.send_keys(Keys.ENTER)
    wait_for(browser, "document.getElementById('v-sex').classList.contains('set')")
    focus = browser.execute_script("return document.activeElement.getAttribute('aria-label')")
    assert focus is not None
    browser.find_element("id", "complete").send_keys(Keys.ENTER)
    wait_for(browser, "document.querySelector('#results td')")
    browser.find_element("id", "draw").send_keys(Keys.ENTER)
    assert wait_for(browser, "document.querySelectorAll('#results tr').length === 6")
    browser.find_element("id", "clear").send_keys(Keys.ENTER)
    wait_for(browser, "!document.querySelector('.card.set')")
    assert complaints(browser) == []


def test_a_client_is_switched_off(browser: Any, explorer: str) -> None:
    looks(browser, 1280, "light")
    opened(browser, explorer)
    browser.find_element("id", "c-registry").click()
    text = "document.getElementById('v-visits').textContent"
    wait_for(browser, f"{text}.includes('switched off')")
    assert len(shares(browser, "sex")) == 2
    assert complaints(browser) == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_report_reads_well_at_every_width(
    browser: Any, fed: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    page = fc.load(fed).report(tmp_path / "report.html", people().drop(columns="id"))
    assert page.stat().st_size < 5_000_000
    looks(browser, width, scheme)
    browser.get(page.as_uri())
    titles = browser.execute_script(
        "return [...document.querySelectorAll('h2')].map((e) => e.textContent)"
    )
    assert titles == [
        "Held-out rows", "Who holds what", "What each client adds", "Which rule, and why",
        "What left the clients", "Who learned what", "Timeline", "What moves sex",
        "Single variables", "What hangs together", "How it was fitted", "Words on this page",
    ]  # fmt: skip
    assert browser.execute_script("return document.querySelectorAll('figure svg').length") >= 8
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    ink = browser.execute_script("return getComputedStyle(document.body).color")
    assert (ink == "rgb(29, 39, 51)") is (scheme == "light")
    assert complaints(browser) == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_start_page_names_the_variables_and_lets_one_ask(
    browser: Any, explorer: str, fed: Path, width: int, scheme: str
) -> None:
    looks(browser, width, scheme)
    address, _, fragment = explorer.partition("/explore")
    browser.get("about:blank")
    browser.get(address)
    token = browser.find_element("id", "token")
    token.send_keys(fragment.partition("token=")[2])
    browser.find_element("id", "use").click()
    wait_for(browser, "document.querySelector('#variables td')")
    names = browser.execute_script(
        "return [...document.querySelectorAll('#variables tr td:first-child')]"
        ".map((e) => e.textContent)"
    )
    model = fc.load(fed)
    assert names == list(model.schema.names)
    asked = browser.execute_script("return document.querySelector('#predict_proba textarea').value")
    body = json.loads(asked)
    assert set(body["rows"][0]) <= set(names)
    browser.find_element("css selector", "#predict_proba button").click()
    text = "document.querySelector('#predict_proba .reply').textContent"
    told = json.loads(wait_for(browser, f"{text}.startsWith('{{') && {text}"))
    expected = model.predict_proba(pd.DataFrame(body["rows"]), body["target"])
    assert told["probabilities"][0] == pytest.approx(expected.iloc[0].tolist())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert complaints(browser) == []


def test_many_variables_are_found_by_name_and_times_are_set_as_times(
    browser: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    rows = pd.DataFrame({f"q{k}": rng.integers(1, 6, 200) for k in range(14)})
    seconds = pd.to_timedelta(rng.integers(0, 10**6, 200), unit="s")
    rows["when"] = pd.Timestamp("2024-02-01 06:00") + seconds
    rows["answer"] = np.where(rows["q3"] > 3, "yes", "no")
    model = fc.learn(rows, label="answer", learner="factorised")
    model.save(tmp_path / "m.fc")
    with exploring(tmp_path / "m.fc") as address:
        looks(browser, 1280, "light")
        browser.get("about:blank")
        browser.get(address)
        wait_for(browser, "document.querySelectorAll('.card svg').length === 16")
        assert browser.execute_script("return document.querySelector('.card').id") == "v-answer"
        seen = "[...document.querySelectorAll('.card')].filter((e) => e.offsetParent !== null)"
        browser.find_element("id", "find").send_keys("whe")
        assert wait_for(browser, f"{seen}.length === 1 && {seen}[0].id === 'v-when'")
        script = (
            "const input = document.querySelector('#v-when input[type=datetime-local]');"
            "input.value = '2024-02-05T12:30'; input.dispatchEvent(new Event('change'))"
        )
        browser.execute_script(script)
        wait_for(browser, "document.getElementById('v-when').classList.contains('set')")
        told = browser.execute_script("return document.getElementById('v-when').textContent")
        assert "2024-02-05 12:30 to 2024-02-12" in told
        shown = wait_for(browser, "document.getElementById('probability').textContent")
        ends = json.loads(browser.execute_script("return stateText()"))["given"]["when"]["between"]
        event = fc.between(*(pd.Timestamp(end, unit="s") for end in ends))
        assert float(shown.split()[0]) / 100 == pytest.approx(
            model.probability({"when": event}), abs=1e-3
        )
        assert complaints(browser) == []
