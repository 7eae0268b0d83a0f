"""Clock, temperature, power and other users of a GPU, from the driver's own library (NVML); nothing on a CPU."""

from __future__ import annotations

import ctypes
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

SLOWDOWNS = {
    0x08: "the card slowed itself down",
    0x20: "the driver slowed the card down because of its temperature",
    0x40: "the card slowed itself down because of its temperature",
    0x80: "an external power brake slowed the card down",
}
POWER_CAP = 0x04  # usual under full load: noted, but no disturbance
LIBRARY = "libnvidia-ml.so.1"


@dataclass(frozen=True, kw_only=True)
class DeviceState:
    """One look at a card: MHz of its multiprocessors, degrees Celsius, watts; None where the driver does not tell."""

    clock: float | None = None
    temperature: float | None = None
    power: float | None = None
    slowdown: str | None = None
    power_capped: bool = False
    others: int = 0

    @property
    def disturbance(self) -> str | None:
        """Why a pass at this moment does not show what the card can do, if so."""
        if self.others:
            return f"{self.others} other process{'es' if self.others > 1 else ''} on the card"
        return self.slowdown


class Watch:
    """Looks at a device; `look` belongs where its work has been queued and is still running."""

    def __init__(self, device: torch.device) -> None:
        self._card = open_card(device) if device.type == "cuda" else None
        self._last: DeviceState | None = None

    def look(self) -> None:
        """Take note of the device as it is now."""
        if self._card is not None:
            self._last = self._card.read()

    def last(self) -> DeviceState | None:
        """Return what the latest look saw."""
        return self._last

    @property
    def driver(self) -> str:
        """The driver's version, `none` without a card."""
        return self._card.driver if self._card is not None else "none"


def summarise(states: Sequence[DeviceState]) -> dict[str, Any] | None:
    """Return the range of each figure over all looks as plain values, None without any."""
    if not states:
        return None
    figures: dict[str, Any] = {}
    for name, unit in (("clock", "MHz"), ("temperature", "C"), ("power", "W")):
        if values := [value for state in states if (value := getattr(state, name)) is not None]:
            figures[f"{name}_{unit}"] = {
                "low": min(values),
                "median": statistics.median(values),
                "high": max(values),
            }
    figures["power_capped"] = sum(state.power_capped for state in states) / len(states)
    figures["slowdowns"] = sorted({state.slowdown for state in states if state.slowdown})
    figures["other_processes"] = max(state.others for state in states)
    return figures


def describe(figures: dict[str, Any] | None) -> str:
    """Return a summary in words; empty where there is none."""
    if figures is None:
        return ""
    parts = []
    for name, text in (("clock_MHz", "MHz"), ("temperature_C", "°C"), ("power_W", "W")):
        if found := figures.get(name):
            parts.append(f"{found['low']:.0f} to {found['high']:.0f} {text}")
    if figures["power_capped"]:
        parts.append(f"at its power cap {figures['power_capped']:.0%} of the time")
    return ", ".join([*parts, *figures["slowdowns"]])


def open_card(device: torch.device, library: Any = None, properties: Any = None) -> Card | None:
    """Return the card behind a torch device, None where the driver's library is missing or refuses."""
    try:
        properties = properties or torch.cuda.get_device_properties(device)
        return Card(library or ctypes.CDLL(LIBRARY), properties, device.index or 0)
    except (OSError, AttributeError, NvmlError):
        return None


class NvmlError(RuntimeError):
    """The driver's library did not answer."""


class Card:
    """One card of NVML."""

    def __init__(self, library: Any, properties: Any, index: int) -> None:
        self._library = library
        self._call("nvmlInit_v2")
        text = ctypes.create_string_buffer(96)
        self._call("nvmlSystemGetDriverVersion", text, len(text))
        self.driver = text.value.decode()
        self._handle = ctypes.c_void_p()
        name = f"GPU-{properties.uuid}".encode()
        try:
            self._call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(name), ctypes.byref(self._handle))
        except NvmlError:  # as in some containers, which then show no cards but their own
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(self._handle))

    def read(self) -> DeviceState:
        """Ask for everything; takes well under a millisecond or a few of them."""
        power = self._figure("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        reasons = int(self._figure("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong) or 0)
        return DeviceState(
            clock=self._figure("nvmlDeviceGetClockInfo", ctypes.c_uint, ctypes.c_uint(1)),  # 1: multiprocessors
            temperature=self._figure("nvmlDeviceGetTemperature", ctypes.c_uint, ctypes.c_uint(0)),
            power=None if power is None else power / 1000,
            slowdown=next((text for bit, text in SLOWDOWNS.items() if reasons & bit), None),
            power_capped=bool(reasons & POWER_CAP),
            others=self._others(),
        )

    def _others(self) -> int:
        """Return how many other processes compute on the card, as far as this one may see them."""
        found = (_Process * 64)()
        count = ctypes.c_uint(len(found))
        try:
            self._call("nvmlDeviceGetComputeRunningProcesses_v3", self._handle, ctypes.byref(count), found)
        except (NvmlError, AttributeError):
            return 0
        pids = [found[i].pid for i in range(count.value)]
        if os.getpid() not in pids:
            # inside a container pids are those of the host: one of them is this process, nobody knows which
            return max(0, len(pids) - 1)
        return len(pids) - 1

    def _figure(self, function: str, kind: Any, *arguments: Any) -> float | None:
        value = kind()
        try:
            self._call(function, self._handle, *arguments, ctypes.byref(value))
        except (NvmlError, AttributeError):
            return None
        return float(value.value)

    def _call(self, function: str, *arguments: Any) -> None:
        if code := getattr(self._library, function)(*arguments):
            raise NvmlError(f"{function} returned {code}")


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )
