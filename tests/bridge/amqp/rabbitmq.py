"""A real RabbitMQ on 127.0.0.1, with its data in a directory: started, killed, and started again on the same data.

It is the distribution's: installed, or unpacked by `make servers`. It ends with the process that started it.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Final

from bench.rivals.servers import Missing, free_port
from blackbox.errors import BridgeError
from blackbox.services.bridge.amqp.connection import Address, hang_up
from blackbox.services.bridge.carrier import Away

ROOT: Final = Path(__file__).resolve().parents[3]
_START_S: Final = 200.0
_PLACES: Final = (ROOT / ".servers", Path("/"))
_HOW: Final = "`make servers` (Debian and Ubuntu), or apt install rabbitmq-server"
_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL")


class RabbitMq:
    """Raise Missing with instructions if RabbitMQ is not installed."""

    def __init__(self, data: Path, **settings: object) -> None:
        self._data, self.port, self._names = data, free_port(), free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}"
        self.certificate = data / "certificate.pem"
        """Certificate at `tls_url`: self-signed, for localhost."""
        tls_port = free_port()
        self.tls_url = f"amqps://guest:guest@localhost:{tls_port}"
        rabbit, self._erlang = _newest("usr/lib/rabbitmq/lib/rabbitmq_server-*"), _newest("usr/lib/erlang/erts-*")
        apps = data / "apps"
        apps.mkdir()
        for app in (rabbit / "plugins").iterdir():  # without plugins, as it searches all of them for each module
            if not app.name.startswith("rabbitmq_") or app.name.startswith("rabbitmq_prelaunch"):
                (apps / app.name).symlink_to(app)
        self._environment = {
            "PATH": f"{self._erlang}/bin:{os.environ['PATH']}",
            "HOME": str(data),
            "ROOTDIR": str(self._erlang.parent),
            "BINDIR": f"{self._erlang}/bin",
            "EMU": "beam",
            "PROGNAME": "erl",
            "ERL_EPMD_PORT": str(self._names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP": str(data / "crash"),
            "ERL_LIBS": str(apps),
            "RABBITMQ_HOME": str(rabbit),
            "RABBITMQ_PLUGINS_DIR": str(apps),
            "RABBITMQ_NODENAME": f"blackbox-{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": f"{data}/rabbitmq",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{data}/advanced.config",
            "RABBITMQ_CONF_ENV_FILE": f"{data}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{data}/plugins",
            "RABBITMQ_MNESIA_BASE": f"{data}/mnesia",
            "RABBITMQ_LOG_BASE": f"{data}/log",
            "RABBITMQ_PID_FILE": f"{data}/pid",
        }
        (data / "plugins").write_text("[].")
        told = ",".join(f"{{{name},{value}}}" for name, value in settings.items())
        (data / "advanced.config").write_text(f"[{{rabbit,[{told}]}}].\n")
        key = certify(self.certificate)
        (data / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\nlisteners.ssl.1 = 127.0.0.1:{tls_port}\n"
            f"ssl_options.certfile = {self.certificate}\nssl_options.keyfile = {key}\n"
            "ssl_options.verify = verify_none\n"
        )
        # A private one: the node would start one that outlives it.
        self._epmd = subprocess.Popen(
            [*_WITH_US, str(self._erlang / "bin" / "epmd"), "-port", str(self._names), "-address", "127.0.0.1"]
        )
        self.start()

    def start(self) -> None:
        """Start, and return once it accepts connections."""
        words = "-noinput -s rabbit boot -boot start_sasl +W w +S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
        with (self._data / "said").open("ab") as said:
            self._node = subprocess.Popen(
                [*_WITH_US, str(self._erlang / "bin" / "erlexec"), *words.split()],
                env=self._environment,
                stdout=said,
                stderr=said,
            )
        deadline = time.monotonic() + _START_S
        while True:
            try:
                hang_up(Address.of(self.url).connect())
            except (Away, BridgeError):
                if self._node.poll() is not None or time.monotonic() > deadline:
                    told = (self._data / "said").read_text()[-2_000:]
                    self.close()
                    raise Missing(f"RabbitMQ did not start: {told}") from None
                time.sleep(0.1)
            else:
                return

    def kill(self) -> None:
        self._node.kill()
        self._node.wait()

    def close(self) -> None:
        for process in (self._node, self._epmd):
            process.kill()
            process.wait()


def certify(certificate: Path) -> Path:
    """Make a certificate for localhost; return its key."""
    key = certificate.with_name("key.pem")
    words = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {certificate}"
    try:
        subprocess.run(
            ["openssl", *words.split(), "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True
        )
    except FileNotFoundError:
        raise Missing("no openssl found: apt install openssl") from None
    return key


def _newest(pattern: str) -> Path:
    for place in _PLACES:
        if found := sorted(place.glob(pattern)):
            return found[-1]
    raise Missing(f"no RabbitMQ found: {_HOW}")
