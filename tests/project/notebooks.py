"""Run notebooks and cells in a kernel of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager, KernelManager
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from tests.project.scripts import ROOT

NOTEBOOKS = ROOT / "notebooks"
_PATIENCE_S = 300
_PATIENT = "from tests.patience import be_patient\nbe_patient()"
"""The first cell: the limits of a free machine are too short for tests."""
_SPECS: Any = KernelSpecManager(kernel_dirs=[])
"""Only the kernel of this Python, none that the user has installed."""


def _environment(place: Path) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "feeds"), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "IPYTHONDIR": str(place / "ipython")}


def results_of(name: str, place: Path, *expressions: str) -> tuple[list[Any], list[str]]:
    """Run a notebook in a directory. Return the values of expressions after its last cell, and all outputs as text."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    notebook.cells.insert(0, new_code_cell(_PATIENT))
    notebook.cells.append(new_code_cell(f"import json\nprint(json.dumps([{', '.join(expressions)}]))"))
    client = NotebookClient(
        notebook,
        km=AsyncKernelManager(kernel_spec_manager=_SPECS, kernel_name="python3"),
        timeout=_PATIENCE_S,
        startup_timeout=_PATIENCE_S,
        resources={"metadata": {"path": str(place)}},
    )
    client.execute(env=_environment(place), cleanup_kc=True)
    shown = [text_of(output) for cell in notebook.cells for output in cell.get("outputs", [])]
    return json.loads(shown.pop()), shown


def text_of(output: Any) -> str:
    """Return an output as text: HTML if there is some."""
    data = output.get("data", {})
    return str(output.get("text") or data.get("text/html") or data.get("text/plain", ""))


class Ended(NamedTuple):
    """The end of a cell."""

    status: str
    """ok or error."""
    text: str
    """Everything that it printed, and the value of its last line."""
    error: str
    """Class and text of its exception, or empty."""


class Kernel:
    """A kernel that runs cells."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager, self._client = manager, client

    def run(self, code: str, interrupt_at: str | None = None) -> Ended:
        """Run a cell. Interrupt it once it has printed a text, if one is given."""
        printed: list[str] = []
        left = [interrupt_at] if interrupt_at else []

        def take(message: Any) -> None:
            if message["msg_type"] in ("stream", "execute_result", "display_data"):
                printed.append(text_of(message["content"]))
                if left and left[0] in "".join(printed):
                    left.clear()
                    self.manager.interrupt_kernel()

        reply = self._client.execute_interactive(code, output_hook=take, timeout=_PATIENCE_S)["content"]
        error = "" if reply["status"] == "ok" else f"{reply['ename']}: {reply['evalue']}"
        return Ended(reply["status"], "".join(printed), error)

    def end(self, wait_until: Callable[[Callable[[], bool], float], object]) -> None:
        """Request the end of the kernel, and wait until its process has ended without a signal."""
        self._client.shutdown()
        wait_until(lambda: not self.manager.is_alive(), _PATIENCE_S)


@contextmanager
def kernel(place: Path) -> Iterator[Kernel]:
    """Start a kernel in a directory. Kill it at the end."""
    manager = KernelManager(kernel_spec_manager=_SPECS, kernel_name="python3")
    manager.start_kernel(env=_environment(place), cwd=str(place))
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=_PATIENCE_S)
        started = Kernel(manager, client)
        started.run(_PATIENT)
        yield started
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
