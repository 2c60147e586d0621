"""Images and containers by buildah and podman, in a storage of their own under the build directory.

What has been built once is a layer of that storage and is not built again.
"""

import json
import os
import pathlib
import shutil
import subprocess
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ["QUIRE_BIN"])
STORE = pathlib.Path(os.environ["QUIRE_DEPLOY_DIR"])
BASE_IMAGE = "localhost/debian:bookworm-slim"
BINARIES = ("quire-server", "quire", "quire-inspect", "quire-convert")
DEADLINE = 120  # seconds for what should take one

STORAGE = '[storage]\ndriver = "overlay"\ngraphroot = "{0}/graph"\nrunroot = "{0}/run"\n'
# Settings for podman without systemd. The limits are small enough for a root user without CAP_SYS_RESOURCE. runc,
# because crun refuses hybrid cgroups. netavark from the first use on, because CNI has no DNS, and both together leave
# two bridges on one subnet. Overlay storage, because vfs takes three times the space. The tests run health checks by
# hand, because podman's timers are systemd's.
CONTAINERS = """[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "{0}/net"
"""


def why_not() -> str:
    """The reason why this machine cannot run containers; empty when it can."""
    if os.geteuid() != 0:
        return "not root"
    wanted = ["buildah", "podman", "runc", "iptables", "mmdebstrap", "/usr/lib/podman/netavark"]
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [name for name in wanted if shutil.which(name, path=path) is None]
    return f"missing: {', '.join(missing)}" if missing else ""


def run(*command: str, check: bool = True, **kwargs) -> subprocess.CompletedProcess:
    environment = {**os.environ, "CONTAINERS_STORAGE_CONF": f"{STORE}/storage.conf",
                   "CONTAINERS_CONF": f"{STORE}/containers.conf"}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, **kwargs)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def podman(*args: str, **kwargs) -> str:
    return run("podman", *args, **kwargs).stdout


def prepare() -> None:
    """The configuration, and the base image, of Debian's archive or the tar that QUIRE_BASE_IMAGE_TAR names."""
    STORE.mkdir(parents=True, exist_ok=True)
    (STORE / "storage.conf").write_text(STORAGE.format(STORE))
    (STORE / "containers.conf").write_text(CONTAINERS.format(STORE))
    if run("podman", "image", "exists", BASE_IMAGE, check=False).returncode == 0:
        return
    tar = os.environ.get("QUIRE_BASE_IMAGE_TAR")
    if not tar:
        tar = str(STORE / "bookworm.tar")
        run("mmdebstrap", "-q", "--variant=minbase", "bookworm", tar, "http://deb.debian.org/debian")
    podman("import", "-q", tar, BASE_IMAGE)


def build(tag: str, *args: str) -> str:
    """Builds deploy/docker/Dockerfile; its first stage is a folder of this build's binaries. buildah's output."""
    folder = STORE / "prebuilt" / "out" / "usr" / "local" / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    modules = folder.parent / "lib" / "quire"
    modules.mkdir(parents=True, exist_ok=True)
    for path, target in [*((BIN / name, folder) for name in BINARIES),
                         *((path, modules) for path in (BIN.parent / "lib/quire").glob("*.so"))]:
        if not (target / path.name).exists() or (target / path.name).stat().st_mtime < path.stat().st_mtime:
            run("install", "-s", str(path), str(target))
    done = run("buildah", "build", "--isolation", "chroot", "--pull-never", "--layers", "--format", "docker",
               "--build-context", f"build={STORE}/prebuilt", "-f", "deploy/docker/Dockerfile", *args, "-t", tag, ".",
               cwd=REPOSITORY)
    return done.stdout + done.stderr


def inspect(what: str) -> dict:
    return json.loads(podman("inspect", what))[0]


class Container:
    """A running container with its gRPC and admin ports on loopback; stopped and removed by close()."""

    # The strictest options that an orchestrator may use.
    STRICT = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", "256")

    def __init__(self, image: str, *args: str, options: tuple[str, ...] = (), port: int = 8100):
        # podman's own health checks need systemd. The tests run the check with `podman healthcheck run`
        # instead.
        self.id = podman("run", "-d", "--health-interval=disable", "-p", f"127.0.0.1::{port}", *self.STRICT, *options,
                         image, *args).strip()
        self._port = port

    def close(self) -> None:
        podman("rm", "-f", "-t", "5", self.id, check=False)

    @property
    def address(self) -> str:
        return podman("port", self.id, f"{self._port}/tcp").strip()

    @property
    def state(self) -> dict:
        return inspect(self.id)["State"]

    def log(self) -> str:
        done = run("podman", "logs", self.id)
        return done.stdout + done.stderr

    def wait(self) -> int:
        """The exit status."""
        return int(podman("wait", self.id, timeout=DEADLINE))

    def exec(self, *command: str, check: bool = True) -> subprocess.CompletedProcess:
        return run("podman", "exec", self.id, *command, check=check)

    def health(self) -> int:
        """The exit status of the image's own health check."""
        return run("podman", "healthcheck", "run", self.id, check=False).returncode

    def wait_healthy(self) -> "Container":
        deadline = time.monotonic() + DEADLINE
        while self.health() != 0:
            assert self.state["Status"] == "running" and time.monotonic() < deadline, self.log()
            time.sleep(0.1)
        return self
