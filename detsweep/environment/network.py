"""The network cards of this machine: name, driver, firmware, speed, from /sys and from the driver itself."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path
from typing import Any

from detsweep.environment.container import ROOT
from detsweep.environment.files import folders, link_name, number, text
from detsweep.environment.host import Unknown

_SIOCETHTOOL = 0x8946
_ETHTOOL_GDRVINFO = 3
# struct ethtool_drvinfo of linux/ethtool.h: command, driver, version, firmware, bus, expansion ROM, and counts.
_DRVINFO = struct.Struct("=I32s32s32s32s32s12s5I")


def network(unknown: Unknown, root: Path = ROOT) -> dict[str, Any]:
    """The cards that have a device behind them, and the InfiniBand and RoCE ports; speeds in Mb/s."""
    cards = [card for card in folders(root / "sys/class/net") if (card / "device").exists()]
    if not cards:
        unknown["network"] = "no card with a device in /sys/class/net"
    told: dict[str, Any] = {card.name: _card(card, unknown, root) for card in cards}
    for device in folders(root / "sys/class/infiniband"):
        told[device.name] = _infiniband(device)
    return told


def _card(card: Path, unknown: Unknown, root: Path) -> dict[str, Any]:
    speed = number(card / "speed")
    if speed is None or speed < 0:
        unknown[f"network.{card.name}.speed"] = f"the driver does not say (operstate {text(card / 'operstate')})"
        speed = None
    firmware = _firmware(card.name) if root == ROOT else None
    if not firmware:
        unknown[f"network.{card.name}.firmware"] = "the driver does not say"
    return {
        "driver": link_name(card / "device/driver"),
        "firmware": firmware or None,
        "device": link_name(card / "device"),
        "speed": speed,
        "mtu": number(card / "mtu"),
        "state": text(card / "operstate"),
    }


def _infiniband(device: Path) -> dict[str, Any]:
    ports = {
        port.name: {
            "state": text(port / "state"),
            "rate": text(port / "rate"),
            "link_layer": text(port / "link_layer"),
        }
        for port in folders(device / "ports")
    }
    return {
        "driver": link_name(device / "device/driver"),
        "firmware": text(device / "fw_ver"),
        "board": text(device / "board_id"),
        "type": text(device / "hca_type"),
        "device": link_name(device / "device"),
        "ports": ports,
    }


def _firmware(name: str) -> str | None:
    """What the driver of a card says of its firmware; any user may ask."""
    import array

    answer = array.array("b", _DRVINFO.pack(_ETHTOOL_GDRVINFO, *(b"" for _ in range(6)), *(0 for _ in range(5))))
    request = struct.pack("16sP", name.encode()[:15], answer.buffer_info()[0])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            fcntl.ioctl(asking, _SIOCETHTOOL, request)
    except OSError:
        return None
    fields = _DRVINFO.unpack(answer.tobytes())
    return bytes(fields[3]).split(b"\0")[0].decode(errors="replace").strip() or None
