"""`fedcircuits coordinate`: train with real parties, show progress, fetch the model."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcircuits.cli.federate import show
from fedcircuits.cli.output import Output
from fedcircuits.cli.parties import Federation, read_parties
from fedcircuits.errors import FederationError

TRAIN = "fedcircuits.cli.coordinate:train"
MODEL, REST = "model.fc", "rest.fc"
LONGEST = 3600.0  # seconds for one message where the federation file has no timeout
PAUSE = 0.5  # seconds between looks at a running job
OVER = ("FINISHED", "ABORTED", "FAILED")


def run(
    out: Output, file: Path, output: Path | None, kits: Path | None, wait: float, fresh: bool
) -> None:
    """Start the server, wait for the parties, submit, watch, fetch; nothing is left running."""
    from fedcircuits.api.load import load
    from fedcircuits.engines.nvflare.coordinator import Coordinator
    from fedcircuits.engines.nvflare.kits import Kits
    from fedcircuits.federation.model.circuit import FederatedCircuit

    federation = read_parties(file, kits)
    to = output or federation.output
    if to is None:
        raise FederationError(f"{file}: say where the model goes: output = 'model.fc', or -o")
    if to.is_dir() or not to.parent.exists():
        raise FederationError(f"cannot write {to}: not a file in an existing folder")
    _check_kind(federation)
    start = time.perf_counter()
    home = federation.kits / "coordinator"
    if fresh:
        shutil.rmtree(home / "answers", ignore_errors=True)
    coordinator = Coordinator(Kits(federation.kits))
    try:
        with out.progress() as progress, coordinator.session() as session:
            progress(0.02, f"waiting for {', '.join(federation.parties)}")
            coordinator.wait_for(session, federation.parties, wait, say=out.say)
            watch = Watch(out, progress, home / "progress.jsonl")
            told = {k: v for k, v in federation.told.items() if k != "clients"}
            arguments = {
                "federate": told,
                "answers": str((home / "answers").resolve()),
                "progress": str(watch.path.resolve()),
            }
            sites = {party: party for party in federation.parties}
            job = coordinator.submit(session, TRAIN, arguments, sites, federation.settings())
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
            report["error"] + (saved if report["rest"] else "") + "; what was done is kept: mend "
            "it and run the same command again"
        )
    fed = load(to)
    assert isinstance(fed, FederatedCircuit)
    seconds = time.perf_counter() - start
    show(out, fed)
    out.say(f"trained in {seconds:.1f} s; saved to {to} ({to.stat().st_size} bytes)")
    out.result(
        {
            "model": str(to),
            "setting": fed.setting,
            "clients": {c: fed.n_rows.get(c) for c in fed.clients},
            "dropped": fed.dropped,
            "n_parameters": fed.n_parameters,
            "seconds": seconds,
            "bytes": fed.ledger.n_bytes,
            "asked": report["asked"],
            "brought_back": report["brought_back"],
        }
    )


def _check_kind(federation: Federation) -> None:
    placement = federation.told.get("placement", "gathered")
    if placement != "gathered" or federation.told.get("operation", "mixture") != "mixture":
        raise FederationError(
            f"{federation.file}: a model file holds gathered densities; remote placement, average "
            "and vote are for fedcircuits.federate in Python (see docs/nvflare.md)"
        )


class Watch:
    """Tells what the job in the server writes down.

    Attributes:
        report: what it says in the end; None until then.

    Args:
        out: for people.
        progress: the bar.
        path: of the file; begun anew.
    """

    def __init__(self, out: Output, progress: Any, path: Path) -> None:
        self._out, self._progress = out, progress
        self.path = path
        self.report: dict[str, Any] | None = None
        self._read = 0
        path.write_text("", encoding="utf-8")

    def look(self) -> None:
        """Tell what is new."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for text in whole.splitlines():
            self._tell(json.loads(text))

    def _tell(self, line: dict[str, Any]) -> None:
        if line["what"] == "over":
            self.report = line
            return
        who = ", ".join(line["clients"])
        if line["what"] == "begins":
            self._progress(0.5, f"{line['verb']}: {who}")
            return
        kept = f", {line['kept']} of {len(line['clients'])} kept" if line["kept"] else ""
        self._out.say(f"{line['verb']}: {who} ({line['seconds']:.1f} s{kept})")
        for why in line["failed"].values():
            self._out.say(f"  {why}")


def train(carrier: Any, arguments: Mapping[str, Any]) -> None:
    """What the controller runs: the server code, with the parties for clients."""
    from fedcircuits.api.federate import federate
    from fedcircuits.engines.nvflare.inside import InController
    from fedcircuits.federation.model.circuit import FederatedCircuit

    transport = InController(
        carrier, Path(arguments["answers"]), Path(arguments["progress"]), LONGEST
    )
    told = dict(arguments["federate"])
    error: str | None = None
    rest = None
    try:
        fed = federate(None, engine=transport, **told.pop("options", {}), **told)
        assert isinstance(fed, FederatedCircuit)
        fed.save(carrier.folder / MODEL)
    except Exception as raised:  # told to the coordinator; the model of the others is not lost
        error, rest = f"{raised}", getattr(raised, "rest", None)
        if isinstance(rest, FederatedCircuit):
            rest.save(carrier.folder / REST)
    transport.over(
        error=error,
        rest=isinstance(rest, FederatedCircuit),
        asked=transport.replay.asked,
        brought_back=transport.replay.brought_back,
    )
