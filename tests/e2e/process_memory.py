"""The resident memory of a process: now, and its peak since a given moment."""

import os

MIB = 1024.0  # in /proc's unit, kB


class ProcessMemory:
    def __init__(self, pid: int):
        self._folder = f"/proc/{pid}"

    def resident_mib(self) -> float:
        return self._field("VmRSS")

    def peak_mib(self) -> float:
        return self._field("VmHWM")

    def forget_peak(self):
        """Starts to measure the peak anew."""
        with open(f"{self._folder}/clear_refs", "w") as file:
            file.write("5")

    def open_files(self) -> int:
        return len(os.listdir(f"{self._folder}/fd"))

    def _field(self, name: str) -> float:
        with open(f"{self._folder}/status") as file:
            return next(float(line.split()[1]) / MIB for line in file if line.startswith(name + ":"))
