"""NVFlare on this machine: the contract, and every way in which a site can be lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import fedcircuits as fc
from contracts.engine import EngineContract, specs, table
from contracts.engine_faults import CLIENT, EngineFaults, Site
from contracts.faulty import FAULTS
from contracts.loopback import own_network
from fedcircuits.api.client_spec import client_from_spec
from fedcircuits.engines import LocalEngine
from fedcircuits.errors import ClientError, FedcircuitsWarning, FederationError

pytest.importorskip("nvflare", reason="the extra [nvflare] is not installed")
from fedcircuits.engines.nvflare.engine import NvflareEngine

pytestmark = pytest.mark.engine
OPTIONS: dict[str, Any] = {"label": "bought", "agreement": "product"}
TIMEOUT = 200.0  # seconds: a site that has ended is noticed long before it
PATHS = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[None]:
    with own_network():
        yield


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def founded(faults: Path) -> Iterator[NvflareEngine]:
    """One federation of north, south and west for all tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PATHS)
        patch.setenv(FAULTS, str(faults))
        with NvflareEngine(specs(), "contracts.faulty:client_from_spec") as engine:
            yield engine


@pytest.fixture
def running(founded: NvflareEngine, faults: Path) -> NvflareEngine:
    """The federation with all its sites, whatever a test that failed has done to them."""
    for path in faults.iterdir():
        path.unlink(missing_ok=True)
    for name in founded.members():
        if founded._processes[name].ended:
            founded.start_site(name)
        else:
            signal_all(family(founded.process_id(name)), psutil.Process.resume)
    return founded


@pytest.fixture
def fault(faults: Path) -> Iterator[Callable[[str, str, str], Path]]:
    """Have a client fail at a request; the file that shows that it has come to it."""

    def tell(client: str, verb: str, what: str) -> Path:
        (faults / f"{client}.{verb}").write_text(what)
        return faults / f"{client}.{verb}.begun"

    yield tell
    for path in faults.iterdir():
        path.unlink(missing_ok=True)


def family(pid: int) -> list[psutil.Process]:
    """A process and all it has started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def when(begun: Path, act: Callable[[], None]) -> threading.Thread:
    """Do something once a client has come to where it fails."""

    def wait() -> None:
        deadline = time.monotonic() + 240
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def local() -> Any:
    """The same federation in this process."""
    clients = {name: client_from_spec(data) for name, data in specs().items()}
    return fc.federate(None, engine=LocalEngine(clients), **OPTIONS)


def saved(fed: Any, path: Path) -> bytes:
    fed.save(path)
    return path.read_bytes()


class TestNvflareEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> str:
        return "nvflare"

    @pytest.fixture
    def transport(self, running: NvflareEngine) -> Any:
        return running

    @pytest.mark.parametrize("setting", ["vertical"])
    def test_same_model_bit_for_bit_as_in_this_process(
        self, engine: Any, setting: str, tmp_path: Path
    ) -> None:
        """By name, which starts a federation; `running` and the silos do the other settings."""
        super().test_same_model_bit_for_bit_as_in_this_process(engine, setting, tmp_path)


class TestNvflareFaults(EngineFaults):
    @pytest.fixture
    def site(self, running: NvflareEngine, faults: Path) -> Iterator[Site]:
        """A site that has ended is started by whoever runs it; its job ends with it."""

        def processes() -> list[int]:
            return [process.pid for process in family(running.process_id(CLIENT))]

        yield Site(running, faults, processes, lambda: running.start_site(CLIENT))
        for path in faults.iterdir():
            path.unlink(missing_ok=True)


def test_site_killed_during_fit_is_left_out_and_named_and_can_come_back(
    running: NvflareEngine, fault: Callable[[str, str, str], Path], tmp_path: Path
) -> None:
    lost = family(running.process_id("south"))
    assert len(lost) == 2  # the site, and its part of the job
    begun = fault("south", "fit", "sleep 1000")
    killing = when(begun, lost[0].kill)
    fed = fc.federate(None, engine=running, timeout=TIMEOUT, **OPTIONS)
    killing.join()
    assert list(fed.dropped) == ["south"]
    assert "its site has ended" in fed.dropped["south"]
    rows = table(seed=1).drop(columns="customer")
    expected = local().without("south").log_prob(rows)
    np.testing.assert_allclose(fed.log_prob(rows), expected, rtol=0, atol=1e-9)
    _, alive = psutil.wait_procs(lost, timeout=120)
    assert not alive  # the job's process was in the middle of a fit and has ended too

    begun.with_suffix("").unlink()
    running.start_site("south")
    again = fc.federate(None, engine=running, timeout=TIMEOUT, **OPTIONS)
    assert again.dropped == {}
    assert saved(again, tmp_path / "again.fc") == saved(local(), tmp_path / "local.fc")


def test_site_killed_before_its_schema_is_an_error_by_name_within_the_timeout(
    running: NvflareEngine, fault: Callable[[str, str, str], Path]
) -> None:
    begun = fault("west", "describe", "sleep 1000")
    killing = when(begun, lambda: os.kill(running.process_id("west"), signal.SIGKILL))
    with pytest.raises(ClientError, match="client 'west': its site has ended"):
        fc.federate(None, engine=running, timeout=TIMEOUT, **OPTIONS)
    killing.join()
    begun.with_suffix("").unlink()
    running.start_site("west")


def test_site_killed_during_a_query_is_said_and_comes_back_with_its_models(
    running: NvflareEngine, fault: Callable[[str, str, str], Path]
) -> None:
    rows = table(seed=1).drop(columns="customer")
    fed: Any = fc.federate(None, engine=running, placement="remote", timeout=TIMEOUT, **OPTIONS)
    whole = fed.log_prob(rows)
    assert whole.attrs["answered"] == ("north", "south", "west")
    np.testing.assert_allclose(whole, local().log_prob(rows), rtol=0, atol=1e-9)
    tasks = running.replay.asked["query"]
    assert tasks == 3  # all models and rows of a client are one task

    begun = fault("north", "query", "sleep 1000")
    killing = when(begun, lambda: os.kill(running.process_id("north"), signal.SIGKILL))
    with pytest.warns(FedcircuitsWarning, match="answered by south, west alone.*client 'north'"):
        answer = fed.log_prob(rows)
    killing.join()
    assert answer.attrs["answered"] == ("south", "west")
    expected = local().without("north").log_prob(rows)
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-9)

    begun.with_suffix("").unlink()
    running.start_site("north")
    again = fed.log_prob(rows)
    assert again.attrs["answered"] == ("north", "south", "west")
    np.testing.assert_array_equal(again, whole)
    assert running.replay.brought_back["north"] >= 1


def signal_all(processes: list[psutil.Process], tell: Callable[[psutil.Process], None]) -> None:
    """Stop or wake processes; one that has ended meanwhile needs neither."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            tell(process)


def test_site_that_hangs_is_named_at_its_timeout_and_the_others_are_kept(
    running: NvflareEngine, fault: Callable[[str, str, str], Path]
) -> None:
    stopped: list[psutil.Process] = []

    def stop() -> None:
        # As they are now: the job before may still have been ending when the test began.
        stopped.extend(family(running.process_id("south")))
        signal_all(stopped, psutil.Process.suspend)

    begun = fault("south", "fit", "sleep 1000")
    stopping = when(begun, stop)
    try:
        # Shorter than NVFlare takes to call a silent site dead.
        fed = fc.federate(None, engine=running, timeout=15, **OPTIONS)
    finally:
        stopping.join()
        signal_all(stopped, psutil.Process.resume)
    assert list(fed.dropped) == ["south"]
    assert "no answer within 15" in fed.dropped["south"]
    assert fed.clients == ("north", "west")
    begun.with_suffix("").unlink()
    assert fc.federate(None, engine=running, timeout=TIMEOUT, **OPTIONS).dropped == {}


def test_corrupt_reply_is_its_clients_and_the_others_go_on(
    running: NvflareEngine, fault: Callable[[str, str, str], Path]
) -> None:
    fault("west", "fit", "corrupt")
    fed = fc.federate(None, engine=running, timeout=TIMEOUT, seed=1, **OPTIONS)
    assert list(fed.dropped) == ["west"]
    assert "cannot be read" in fed.dropped["west"]


def test_nothing_is_left_running_or_lying_about_after_close(running: NvflareEngine) -> None:
    pids = [running.process_id(name) for name in running.members()]
    processes = [p for pid in (*pids, running.server_id) for p in family(pid)]
    assert len(processes) >= 8  # server and sites, and for each its part of the job
    home = running.folder
    running.close()
    running.close()
    _, alive = psutil.wait_procs(processes, timeout=120)
    assert not alive
    assert not home.exists()
    with pytest.raises(FederationError, match="closed"):
        running.call("describe", {"north": b""})


def test_all_ends_with_a_program_that_is_killed() -> None:
    script = (
        "import time\n"
        "from contracts.engine import specs\n"
        "from fedcircuits.engines.nvflare.engine import NvflareEngine\n"
        "from fedcircuits.api.client_spec import CLIENT_FROM_SPEC\n"
        "engine = NvflareEngine({'north': specs()['north']}, CLIENT_FROM_SPEC)\n"
        "print(engine.folder, flush=True)\n"
        "time.sleep(300)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PATHS},
    ) as program:
        assert program.stdout is not None
        folder = Path(program.stdout.readline().strip())
        assert (folder / "site-1").is_dir()
        processes = family(program.pid)
        assert len(processes) == 5  # with server and site, and for each its part of the job
        program.kill()
    _, alive = psutil.wait_procs(processes, timeout=120)
    assert not alive
    assert not folder.exists()  # a copy of the rows was in it
