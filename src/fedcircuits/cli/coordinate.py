"""`fedcircuits coordinate`: train with clients on machines of their own, and fetch the model."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcircuits.api.watched import Stages
from fedcircuits.cli.federate import check_output, show, summary
from fedcircuits.cli.federation_file import read_parties
from fedcircuits.cli.output import Output
from fedcircuits.errors import FederationError

TRAIN = "fedcircuits.cli.coordinate:train"
MODEL, REST = "model.fc", "rest.fc"
LONGEST = 3600.0  # seconds for one message where the federation file has no timeout
PAUSE = 0.5  # seconds between looks at a running job
OVER = ("FINISHED", "ABORTED", "FAILED")


def run(
    out: Output, file: Path, output: Path | None, kits: Path | None, wait: float, fresh: bool
) -> None:
    """Start the server, wait for the clients, train, fetch the model, and stop the server."""
    from fedcircuits.api.saved import load
    from fedcircuits.engines.nvflare.coordinator import Coordinator
    from fedcircuits.engines.nvflare.kits import Kits
    from fedcircuits.federation.model.federated_circuit import FederatedCircuit

    federation = read_parties(file, kits)
    to = check_output(federation, output)
    start = time.perf_counter()
    home = federation.kits / "coordinator"
    if fresh:
        shutil.rmtree(home / "answers", ignore_errors=True)
    coordinator = Coordinator(Kits(federation.kits))
    try:
        with out.progress() as progress, coordinator.session() as session:
            progress(0.02, f"waiting for {', '.join(federation.names)}")
            coordinator.wait_for(session, federation.names, wait, say=out.say)
            watch = Watch(out, progress, home / "progress.jsonl")
            arguments = {
                "federate": federation.settings,
                "answers": str((home / "answers").resolve()),
                "progress": str(watch.path.resolve()),
            }
            sites = {name: name for name in federation.names}
            job = coordinator.submit(session, TRAIN, arguments, sites, federation.client_settings())
            while watch.report is None:
                coordinator.check()
                status = coordinator.status(session, job)
                watch.look()
                if watch.report is None and any(word in status for word in OVER):
                    raise FederationError(f"the job ended without a result ({status}): see {home}")
                time.sleep(PAUSE)
            report, folder = watch.report, Path(watch.report["folder"])
            rest = to.with_suffix(".rest.fc")
            if report["error"] is None:
                shutil.copyfile(folder / MODEL, to)
            elif report["rest"]:
                shutil.copyfile(folder / REST, rest)
    finally:
        coordinator.stop()
    if report["error"] is not None:
        saved = f"; the model of the others is in {rest}"
        raise FederationError(
            report["error"] + (saved if report["rest"] else "") + "; replies so far are kept: mend "
            "it and run the same command again"
        )
    fed = load(to, FederatedCircuit)
    seconds = time.perf_counter() - start
    show(out, fed)
    out.say(f"trained in {seconds:.1f} s; saved to {to} ({to.stat().st_size} bytes)")
    counts = {name: report[name] for name in ("asked", "brought_back")}
    out.result({**summary(fed, to, seconds), **counts})


class Watch:
    """Shows the progress that the job in the server writes to a file.

    Attributes:
        report: the last entry, with the result; None until then.

    Args:
        out: where lines are shown.
        progress: the bar.
        path: of the file, which is emptied.
    """

    def __init__(self, out: Output, progress: Any, path: Path) -> None:
        self._out, self._stages = out, Stages(progress)
        self.path = path
        self.report: dict[str, Any] | None = None
        self._read = 0
        path.write_text("", encoding="utf-8")

    def look(self) -> None:
        """Show what was written since the last look."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for text in whole.splitlines():
            self._show(json.loads(text))

    def _show(self, line: dict[str, Any]) -> None:
        if line["what"] == "over":
            self.report = line
            return
        who = ", ".join(line["clients"])
        if line["what"] == "begins":
            self._stages.end()
            self._stages.begin(line["verb"], line["clients"])
            return
        kept = f", {line['kept']} of {len(line['clients'])} kept" if line["kept"] else ""
        self._out.say(f"{line['verb']}: {who} ({line['seconds']:.1f} s{kept})")
        for why in line["failed"].values():
            self._out.say(f"  {why}")


def train(carrier: Any, arguments: Mapping[str, Any]) -> None:
    """Train inside the NVFlare controller and save the model there for the coordinator to fetch."""
    from fedcircuits.api.federate import federate
    from fedcircuits.engines.nvflare.inside import InController
    from fedcircuits.federation.model.federated_circuit import FederatedCircuit

    transport = InController(
        carrier, Path(arguments["answers"]), Path(arguments["progress"]), LONGEST
    )
    error: str | None = None
    rest = None
    try:
        fed = federate(None, engine=transport, **arguments["federate"])
        fed.save(carrier.folder / MODEL)
    except Exception as raised:  # goes to the coordinator; the model of the others is not lost
        error, rest = f"{raised}", getattr(raised, "rest", None)
        if isinstance(rest, FederatedCircuit):
            rest.save(carrier.folder / REST)
    transport.over(
        error=error,
        rest=isinstance(rest, FederatedCircuit),
        asked=transport.replay.asked,
        brought_back=transport.replay.brought_back,
    )
