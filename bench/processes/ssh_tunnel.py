"""A real `ssh -C` tunnel to a real sshd on 127.0.0.1 that leads to the hub of another site.

    hub, readers here ──> ssh ==one TCP connection, compressed==> sshd ──> hub there

sshd is the distribution's: installed, or unpacked by `make servers`. A thread starts one for each connection, like
inetd, and keeps the connection open because the kernel counts its bytes.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from msgspec.structs import replace

from bench.measure.cost import cpu_seconds
from bench.rivals.servers import Missing
from blackbox import Feed
from blackbox.feed.endpoint import free_endpoints

_ROOT: Final = Path(__file__).resolve().parents[2]
_SERVERS: Final = _ROOT / ".servers" / "usr"
_PARTS: Final = {
    "SshdSessionPath": _SERVERS / "lib" / "openssh" / "sshd-session",
    "SshdAuthPath": _SERVERS / "lib" / "openssh" / "sshd-auth",
}
"""Helper programs of an unpacked sshd, since OpenSSH 9.8."""
_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL")
_PATIENCE_S: Final = 60.0
_COUNTED: Final = struct.Struct("=128xQ64xQ")
"""`tcpi_bytes_received` and `tcpi_bytes_sent` of linux/tcp.h."""


class SshTunnel:
    """A tunnel to another site, up from `start` until `kill` or until ssh gives up; restartable until `close`.

    Raises Missing if there is no ssh, or no sshd that this user can run.
    """

    feed: Feed
    """The other site's feed, with endpoints at this end of the tunnel."""

    def __init__(self, there: Feed, *options: str) -> None:
        """Prepare keys, configuration and sshd. `options` are those of ssh: `-C` compresses."""
        ssh = shutil.which("ssh")
        if ssh is None:
            raise Missing("no ssh found: apt install openssh-client")
        self.feed, forwards = _reached_here(there)
        # sshd run by root needs a user and a directory made by its package, so root runs it as an unprivileged user.
        self._user: dict[str, Any] = {}
        name = pwd.getpwuid(os.geteuid()).pw_name
        if os.geteuid() == 0:
            name = "daemon"
            self._user = {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}
        self._taken: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []
        self._ssh: subprocess.Popen[bytes] | None = None
        with ExitStack() as stack:
            files = Path(stack.enter_context(TemporaryDirectory(prefix="blackbox-ssh-")))
            self._said = stack.enter_context((files / "said").open("w+b"))
            self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = self._listener.getsockname()[1]
            for key in ("host", "user"):
                words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(files / key)]
                subprocess.run(words, check=True, timeout=_PATIENCE_S)
            (files / "known").write_text(f"[127.0.0.1]:{port} {(files / 'host.pub').read_text()}")
            (files / "config").write_text(
                f"HostKey {files}/host\nAuthorizedKeysFile {files}/user.pub\nUsePAM no\nStrictModes no\nPidFile none\n"
                + "".join(f"{what} {path}\n" for what, path in _PARTS.items() if path.exists())
            )
            for path in (files, *files.iterdir()):
                os.chown(path, pwd.getpwnam(name).pw_uid, -1)
            self._sshd = [_sshd(), "-e", "-f", f"{files}/config"]
            self._libraries = ":".join(map(str, (_SERVERS / "lib").glob("*-linux-gnu")))
            self._check_sshd()
            settings = {
                "BatchMode": "yes",
                "IdentitiesOnly": "yes",
                "UserKnownHostsFile": f"{files}/known",
                "ConnectTimeout": "60",
                "ExitOnForwardFailure": "yes",
                "PermitLocalCommand": "yes",
                "LocalCommand": "echo connected",
            }
            self._command = [*_WITH_US, ssh, "-F", "none", "-N", *options, "-i", f"{files}/user", "-p", str(port)]
            self._command += [word for each in settings.items() for word in ("-o", "=".join(each))]
            self._command += [word for each in forwards for word in ("-L", each)]
            self._command += [f"{name}@127.0.0.1"]
            self._stack = stack.pop_all()
        self._thread = threading.Thread(target=self._accept, name="sshd", daemon=True)
        self._thread.start()

    def start(self) -> None:
        """Start ssh and wait for its ports. Raises RuntimeError if they do not open."""
        self.kill()
        self._ssh = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._said)
        assert self._ssh.stdout is not None
        if not self._ssh.stdout.readline():
            self.kill()
            self._said.seek(0)
            raise RuntimeError(f"ssh did not connect: {self._said.read().decode(errors='replace')[-2_000:]}")

    def kill(self) -> None:
        """Kill ssh."""
        if self._ssh is not None:
            self._ssh.kill()
            self._ssh.communicate()
            self._ssh = None

    def crossed(self) -> int:
        """Return the total bytes over its TCP connections in both directions."""
        told = [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256) for each, _ in self._taken]
        return sum(sum(_COUNTED.unpack_from(each)) for each in told)

    def cpu_s(self) -> float:
        """Return the CPU time of ssh and of the sshd at its other end so far."""
        assert self._ssh is not None
        return sum(map(cpu_seconds, (self._ssh.pid, *self._serving())))

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Pause the other end within the block, without closing connections."""
        serving = self._serving()
        for pid in serving:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in serving:
                os.kill(pid, signal.SIGCONT)

    def has_ended(self) -> bool:
        """Return True if ssh has ended."""
        return self._ssh is None or self._ssh.poll() is not None

    def _serving(self) -> list[int]:
        """Return the PIDs of sshd at the other end."""
        _, server = self._taken[-1]
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        return [server.pid, *map(int, children)]

    def close(self) -> None:
        """End it."""
        self.kill()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for connection, server in self._taken:
            connection.close()
            try:
                server.wait(_PATIENCE_S)  # it ends with ssh
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_sshd(self) -> None:
        try:
            words = [*self._sshd, "-t"]
            told = subprocess.run(words, check=False, capture_output=True, timeout=_PATIENCE_S, **self._how())
        except OSError as error:
            raise Missing(f"{self._sshd[0]} could not be run: {error}") from None
        if told.returncode:
            raise Missing(f"{self._sshd[0]} could not be run: {told.stderr.decode(errors='replace')[-500:]}")

    def _how(self) -> dict[str, Any]:
        return {"env": os.environ | {"LD_LIBRARY_PATH": self._libraries}, **self._user}

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # shut down
                return
            end, words = connection.fileno(), [*self._sshd, "-i"]
            server = subprocess.Popen(words, stdin=end, stdout=end, stderr=self._said, **self._how())
            self._taken.append((connection, server))


def _sshd() -> str:
    """Return the absolute path of sshd, which it must be called by."""
    places = (str(_SERVERS / "sbin"), "/usr/sbin", "/usr/local/sbin", "/usr/bin")
    found = shutil.which("sshd", path=os.pathsep.join(places))
    if found is None:
        raise Missing("no sshd found: `make servers` (Debian and Ubuntu), or apt install openssh-server")
    return found


def _reached_here(there: Feed) -> tuple[Feed, list[str]]:
    """Return the feed with endpoints of this host, and ssh's forwarding options."""
    hub, archive, *slices = (each for (each,) in free_endpoints("tcp", there.name, 2 + len(there.slices), 1))
    parts = tuple(replace(part, endpoints=(each,)) for part, each in zip(there.slices, slices, strict=True))
    theirs = (there.hub, there.archives[0], *(part.endpoints[0] for part in there.slices))
    forwards = [
        f"{ours}:{each}".replace("tcp://", "") for ours, each in zip((hub, archive, *slices), theirs, strict=True)
    ]
    return replace(there, hub=hub, archives=(archive,), slices=parts), forwards
