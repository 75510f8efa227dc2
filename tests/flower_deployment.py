"""A real Flower deployment on this machine: a SuperLink, SuperNodes with TLS and keys of their own, and runs.

Every process is started in a group of its own, listens on 127.0.0.1 only, and is stopped by its number. Every wait is
bounded.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kinfed.backends.flower import QUIET
from kinfed.deployment.certificates import Certificates, write_certificates
from pages import ROOT, steps

START = 60.0
"""Seconds a process may take to start; the machine may be busy with other tests."""
CONNECTED, FOUND_AGAIN = "SuperNode ID:", "Connection successful"
"""What a SuperNode logs when it is connected, and when it has found a SuperLink that was away."""


class DeploymentError(AssertionError):
    """Something did not happen in time; the message ends with the logs."""


def free_port():
    """A port that nobody listens on; another process may take it before it is used, so starts are tried again."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until(condition, seconds, what):
    """Wait for a condition, and fail if it does not come true."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise DeploymentError(f"{what} did not happen within {seconds:g} s")


class Network:
    """A network namespace with a loopback and no route to anywhere else; use within ``with``.

    Where this machine allows none, `confined` is false, and commands are run in the network that is there.
    """

    def __enter__(self):
        alone = ["unshare", "--map-root-user", "--net", "sh", "-c", "ip link set lo up && echo up && exec cat"]
        self._keeper = subprocess.Popen(  # it ends, and the namespace with it, when this process does
            alone if shutil.which("unshare") and shutil.which("nsenter") else ["false"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.confined = self._keeper.stdout.readline() == b"up\n"
        return self

    def __exit__(self, *_):
        self._keeper.stdin.close()
        self._keeper.wait(10)
        self._keeper.stdout.close()

    def command(self, *command):
        """The command, run in this network."""
        if not self.confined:
            return list(command)
        return ["nsenter", "--target", str(self._keeper.pid), "--user", "--net", "--preserve-credentials", *command]

    def read(self, name):
        """What the kernel says of this network, such as "snmp" or "tcp"."""
        return Path("/proc", str(self._keeper.pid) if self.confined else "self", "net", name).read_text()

    def without_route(self):
        """How many packets were sent anywhere but to the loopback, and how many at all."""
        head, values = (line.split() for line in self.read("snmp").splitlines() if line.startswith("Ip:"))
        counted = dict(zip(head, values, strict=True))
        beyond = dict(line.split() for line in self.read("snmp6").splitlines())
        return int(counted["OutNoRoutes"]) + int(beyond.get("Ip6OutNoRoutes", 0)), int(counted["OutRequests"])

    def listens(self, port):
        """Whether somebody listens at that port."""
        lines = [line.split() for line in self.read("tcp").splitlines()[1:]]
        return any(line[1].endswith(f":{port:04X}") and line[3] == "0A" for line in lines)


@dataclass
class Process:
    """A process in its own group, its log in a file."""

    name: str
    command: list
    environment: dict
    folder: Path
    popen: subprocess.Popen | None = None

    def start(self):
        with self.log_path.open("ab") as log:
            self.popen = subprocess.Popen(
                self.command,
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    @property
    def log_path(self):
        return self.folder / f"{self.name}.log"

    @property
    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @property
    def running(self):
        return self.popen is not None and self.popen.poll() is None

    def connect(self, since):
        """Whether a SuperNode has connected after that place of its log; one that has ended is started again."""
        if not self.running:
            self.start()
            wait_until(lambda: CONNECTED in self.log[since:] or not self.running, START, "connecting, or a refusal")
        return CONNECTED in self.log[since:]

    def kill(self):
        """End the process and all it started, at once: what a power cut does."""
        self._signal(signal.SIGKILL)
        self.popen.wait(10)

    def stop(self):
        """Ask it to end, and insist."""
        if self.popen is None:
            return
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(10)
        self._signal(signal.SIGKILL)  # the group: helpers notice late that their parent is gone
        self.popen.wait(10)

    def _signal(self, number):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)


@dataclass
class Deployment:
    """A SuperLink and its SuperNodes; use within ``with``.

    With `simulation` there are no SuperNodes: runs are simulated on Ray, which listens on all interfaces whatever it is
    told. Only start it in a network that is confined.
    """

    folder: Path
    network: Network
    tls: bool = True
    nodes: int = 3
    simulation: bool = False
    link_options: tuple = ()
    port: int = 0
    link: Process | None = None
    supernodes: dict = field(default_factory=dict)
    certificates: Certificates | None = None

    def __enter__(self):
        if self.simulation:
            self.tls = False
        self.folder.mkdir(parents=True, exist_ok=True)
        self.home.mkdir(exist_ok=True)
        # The SuperExec looks for work every second by default.
        # Flower starts its helpers by name, so the folder of this Python's programs has to be searched first.
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        own = {"FLWR_HOME": str(self.home), "OMP_NUM_THREADS": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}
        self.environment = {**os.environ, **QUIET, **own, "PATH": programs}
        if self.tls:
            keys = self.folder / "certificates"
            keys.mkdir(exist_ok=True)
            self.certificates = write_certificates(keys, nodes=self.nodes)
        try:
            self.start_link()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def home(self):
        return self.folder / "home"

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def start_link(self):
        """Start the SuperLink and wait until it listens; one that was killed is started again at the same address."""
        earlier = self.port
        for _ in range(3):
            self.port = earlier or free_port()
            if self.tls:
                command = ["sh", "-c", self._link_as_on_the_page()]
            else:
                command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), "--insecure"]
                command += [*(["--simulation"] if self.simulation else []), *self.link_options]
            self.link = Process("superlink", self.network.command(*command), self.environment, self.folder).start()
            wait_until(lambda: self.network.listens(self.port) or not self.link.running, START, "the SuperLink's start")
            if self.link.running:
                self._write_connection()
                return
        raise DeploymentError(f"the SuperLink does not start:\n{self.logs()}")

    def _link_as_on_the_page(self):
        """What the page tells the host to type, with the address and the files of this deployment."""
        (text,) = (step.text for step in steps(ROOT / "docs" / "flower.md") if "flower-superlink " in step.text)
        keys = self.certificates.authority.parent
        for shown, here in {"0.0.0.0": "127.0.0.1", "8000": str(self.port), "keys/": f"{keys}/"}.items():
            assert shown in text
            text = text.replace(shown, here)
        return " ".join([text.rstrip(), *self.link_options])

    def restart_link(self):
        """Kill the SuperLink and the run that is on, start it again, and wait until the nodes have found it."""
        before = [(node, len(node.log)) for node in self.supernodes.values() if node.running]

        def all_log(words):
            return all(words in node.log[since:] or not node.running for node, since in before)

        self.link.kill()
        wait_until(lambda: all_log("Connection attempt failed"), START, "losing the SuperLink")
        self.start_link()
        wait_until(lambda: all_log(FOUND_AGAIN), 30, "finding it again")

    def register(self, number, seconds=START):
        """Register the key of a node at the SuperLink."""
        return self.flwr("supernode", "register", str(self.certificates.public_keys[number]), "test", seconds=seconds)

    def start_node(self, number, config="", key=None, authority=None, plaintext=False, extra=()):
        """Start SuperNode `number` with node config text such as 'name="a" data="/path"'.

        It uses, and registers, the key made for it; a `key` that is given is used as it is. With an `authority` it trusts
        that one instead, and in `plaintext` it uses neither key nor certificate.
        """
        command = ["flower-supernode", "--superlink", self.address, "--host", "127.0.0.1", "--port", str(free_port())]
        if plaintext or not self.tls:
            command += ["--insecure"]
        else:
            if key is None:
                self.register(number)
            command += ["--root-certificates", str(authority or self.certificates.authority)]
            command += ["--auth-supernode-private-key", str(key or self.certificates.node_keys[number])]
        text = f"partition-id={number} {config}".strip()
        whole = self.network.command(*command, "--node-config", text, *extra)
        self.supernodes[number] = Process(f"node-{number}", whole, self.environment, self.folder).start()
        return self.supernodes[number]

    def revive_nodes(self, *numbers):
        """Start the nodes again that were killed, or these of them, and wait until they are connected.

        Flower refuses a node whose key it still believes connected, for up to a minute: it ends, and is started again.
        """
        for number in numbers or self.supernodes:
            node = self.supernodes[number]
            if not node.running:
                wait_until(partial(node.connect, len(node.log)), 2 * START, "connecting again")

    def wait_for_nodes(self, count=None, seconds=START):
        """Wait until the nodes are connected."""
        wanted = len(self.supernodes) if count is None else count
        return wait_until(
            lambda: sum(CONNECTED in node.log for node in self.supernodes.values()) >= wanted, seconds, "connecting"
        )

    def run(self, app, config="", simulated=0, seconds=START):
        """Start a run of an app folder, with that many simulated nodes if there are any; its identifier."""
        options = ["-c", config] if config else []
        if simulated:
            cores = f"num-supernodes={simulated} client-resources-num-cpus=1 init-args-num-cpus=2"
            options += ["--federation-config", cores]
        done = self.flwr("run", str(app), "test", *options, "--format", "json", seconds=seconds)
        return json.loads(done.stdout[done.stdout.index("{") :])["run-id"]

    def status(self, run):
        """Where a run is, such as "running" or "finished:completed"."""
        done = self.flwr("ls", "test", "--run-id", str(run), "--format", "json")
        return json.loads(done.stdout[done.stdout.index("{") :])["runs"][0]["status"]

    def flwr(self, *arguments, seconds=START):
        """Run the ``flwr`` command; a failure is an error with all that was printed."""
        done = subprocess.run(
            self.network.command("flwr", *arguments),
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        if done.returncode != 0:
            raise DeploymentError(f"flwr {' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr}\n{self.logs()}")
        return done

    def wait_for_end(self, run, seconds=60.0):
        """Wait until a run has ended well."""
        wait_until(lambda: not self._server_apps(), seconds, "the end of the run")  # asking Flower starts a process
        wait_until(lambda: self.status(run) == "finished:completed", seconds, "the end of the run")

    def kill_server_app(self):
        """Kill the process of the run that is on: the SuperLink and the nodes stay."""
        found = self._server_apps()
        if not found:
            raise DeploymentError("no run is on")
        for number in found:
            os.kill(number, signal.SIGKILL)

    def _server_apps(self):
        """The processes of runs that are on."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                if b"flwr-serverapp" in command and self.address.encode() in command:
                    found.append(int(entry.name))
        return found

    def wait_for(self, path, seconds):
        """Wait for a file that a run writes; its logs tell why it does not come."""
        try:
            wait_until(path.exists, seconds, f"{path.name}")
        except DeploymentError as error:
            raise DeploymentError(f"{error}\n{self.logs()}") from None
        return path

    def logs(self, lines=40):
        """The ends of all logs."""
        processes = [one for one in (self.link, *self.supernodes.values()) if one is not None]
        return "\n".join(f"--- {one.name}\n" + "\n".join(one.log.splitlines()[-lines:]) for one in processes)

    def stop(self):
        """Stop everything, nodes first; nothing that was started here is left."""
        for process in (*self.supernodes.values(), self.link):
            if process is not None:
                process.stop()

    def _write_connection(self):
        security = f'root-certificates = "{self.certificates.authority}"' if self.tls else "insecure = true"
        text = f'[superlink]\ndefault = "test"\n\n[superlink.test]\naddress = "{self.address}"\n{security}\n'
        (self.home / "config.toml").write_text(text)
