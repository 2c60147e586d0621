#!/usr/bin/env python3
"""Runs every attack at once on a server of its own, for --seconds, with a victim beside them.

    python3 bench/storm/storm.py [--build build/release] [--seconds 600] [--tls] [--tokens]

Exit status 1 when one of these promises is broken: the victim's answers are equal, none fails, none is late; memory
stays below a bound and falls when the storm is over; the server still serves, and stops when it is told to. All
connections stay on this machine, and all processes end by themselves.
"""

import argparse
import multiprocessing
import os
import pathlib
import queue
import sys
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TOKEN = "the-only-token-0123456789"
LIMITS = ("--handshake_timeout", "2s", "--message_timeout", "5s", "--stalled_stream_timeout", "2s", "--max_connections",
          "512", "--max_unfinished_mib", "64",
          # The KV cache is small, because its memory stays resident once used and would hide the memory growth
          # under test.
          "--kv_cache_mib", "8")
PAUSE = 0.2  # seconds between two rounds of one attack


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=REPOSITORY / "build/release", help="build folder")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--tls", action="store_true", help="the server has a certificate")
    parser.add_argument("--tokens", action="store_true", help="the server asks for a token, which only the victim has")
    parser.add_argument("--only", default="", metavar="WORDS", help="only attacks whose name contains these words")
    parser.add_argument("--peak_mib", type=float, default=256, help="largest growth of memory during the storm (default 256)")
    parser.add_argument("--after_mib", type=float, default=48, help="largest growth left 15 s after the end (default 48)")
    parser.add_argument("--log", type=pathlib.Path, help="file for the server's log")
    parser.add_argument("--longest_gap", type=float, default=10, metavar="SECONDS",
                        help="longest time between two answers of the victim (default 10)")
    return parser.parse_args()


def find_modules(build: pathlib.Path):
    """The end-to-end tests' modules, here and in the victim's process."""
    os.environ["QUIRE_BIN"] = str(build.resolve() / "bin")
    generated = build.resolve() / "tests/e2e/python"
    if not (generated / "generated.stamp").exists():
        sys.exit(f"{generated} is empty: build the target quire_e2e_python in {build}")
    folders = [str(REPOSITORY / "tests/e2e"), str(generated)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.path[:0] = folders


def attack_again_and_again(name: str, number: int, address: str, ca: str, deadline: float, results):
    """Runs in a process of its own: repeats one attack from an address of its own until `deadline`. Reports how many
    rounds began, and how many of them were refused or cut early."""
    import ssl

    import attacks

    # Real attackers compute on machines of their own. These take what the server and the victim leave of the cores.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    context = ssl.create_default_context(cafile=ca) if ca else None
    if context:
        context.set_alpn_protocols(["h2"])
    rounds = ended = 0
    while time.time() < deadline:
        rounds += 1
        try:
            with attacks.Site(address, context, source=f"127.0.2.{number + 1}") as site:
                attacks.EVERY[name](site)
        except OSError:
            ended += 1  # refused, or cut while the round began
        time.sleep(PAUSE)
    results.put((name, rounds, ended))


class Storm:
    def __init__(self, args: argparse.Namespace):
        import attacks

        self.args = args
        self.names = [name for name in attacks.EVERY if args.only in name]
        self._spawn = multiprocessing.get_context("spawn")
        self._results = self._spawn.Queue()
        self.rounds: dict[str, tuple[int, int]] = {}

    def start(self, address: str, ca: str):
        deadline = time.time() + self.args.seconds
        self._processes = [
            self._spawn.Process(target=attack_again_and_again, daemon=True,
                                args=(name, number, address, ca, deadline, self._results))
            for number, name in enumerate(self.names)]
        for process in self._processes:
            process.start()

    def join(self, seconds: float):
        """Waits for the processes, which end after their last round. Kills a process that does not end in time."""
        deadline = time.monotonic() + seconds
        while len(self.rounds) < len(self.names) and time.monotonic() < deadline:
            try:
                name, rounds, ended = self._results.get(timeout=1)
                self.rounds[name] = (rounds, ended)
            except queue.Empty:
                pass
        for process in self._processes:
            process.join(1)
            process.kill()


def flags(args: argparse.Namespace) -> list[str]:
    import harness
    from certificates import make_authority, make_certificate, server_tls

    found = list(LIMITS)
    if args.tls:
        make_authority("authority")
        make_certificate("server", "authority")
        found += server_tls()
    if args.tokens:
        (harness.SCRATCH / "tokens").write_text(TOKEN + "\n")
        found += ["--auth_token_file", str(harness.SCRATCH / "tokens")]
    return found


def watch(storm: Storm, victim, memory, seconds: float):
    """Sums up what the victim saw, and prints a line about it now and then."""
    from victim import Report

    total, start = Report(), time.monotonic()
    while (passed := time.monotonic() - start) < seconds:
        time.sleep(min(10.0, seconds - passed))
        latest = victim.report()
        total = total + latest
        print(f"{time.monotonic() - start:6.0f} s  {memory.resident_mib():7.1f} MiB  {latest.answers:5} answers, "
              f"longest gap {1000 * latest.longest_gap:.0f} ms, errors {latest.errors}", flush=True)
    return total


def run(args: argparse.Namespace) -> int:
    import attacks
    from certificates import path
    from harness import Server
    from process_memory import ProcessMemory
    from victim import Victim

    storm = Storm(args)
    server = Server(*flags(args)).ready()
    ca = path("authority.pem") if args.tls else ""
    victim = Victim(server.address, ca, TOKEN if args.tokens else "")
    victim.wait_for_answers(50)
    memory = ProcessMemory(server.pid)
    before = memory.resident_mib()
    memory.forget_peak()
    print(f"{len(storm.names)} attacks for {args.seconds:.0f} s; {before:.1f} MiB before", flush=True)
    storm.start(server.address, ca)
    total = watch(storm, victim, memory, args.seconds)
    storm.join(60)
    peak = memory.peak_mib()
    total = total + victim.report()
    time.sleep(15)
    calm = victim.wait_for_answers(20)
    after, files = memory.resident_mib(), memory.open_files()
    counters = attacks.turned_away(server)
    victim.close()
    status = server.stop()
    if args.log:
        args.log.write_text(server.log())

    print(f"\n{'attack':40}{'rounds':>8}{'ended early':>13}")
    for name in storm.names:
        rounds, ended = storm.rounds.get(name, (0, 0))
        print(f"{name:40}{rounds:8}{ended:13}")
    print("\n" + "\n".join(f"{name:40}{value:12.0f}" for name, value in counters.items() if value))
    promises = {
        f"{total.answers} answers of the victim, {total.wrong} other than the first":
            total.answers > 0 and not total.wrong,
        f"{len(total.errors)} of its calls failed {total.errors[:3]}": not total.errors,
        f"longest gap {total.longest_gap:.2f} s": total.longest_gap <= args.longest_gap,
        f"after the storm {calm.answers} answers, {calm.wrong} wrong, {len(calm.errors)} failed {calm.errors[:3]}":
            calm.answers > 0 and not calm.wrong and not calm.errors,
        f"peak {peak:.1f} MiB, {peak - before:+.1f}": peak - before <= args.peak_mib,
        f"after {after:.1f} MiB, {after - before:+.1f}; {files} open files": after - before <= args.after_mib,
        f"every attack ran: {len(storm.rounds)} of {len(storm.names)}": len(storm.rounds) == len(storm.names),
        f"the server ended with {status}": status == 0,
    }
    print()
    for words, kept in promises.items():
        print(f"{'kept  ' if kept else 'BROKEN'}  {words}")
    return 0 if all(promises.values()) else 1


def main() -> int:
    args = parse_arguments()
    find_modules(args.build)
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
