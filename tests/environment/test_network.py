"""Network cards and InfiniBand ports, on a tree of files as the kernel lays it out, and those of this machine."""

from __future__ import annotations

from pathlib import Path

from detsweep.environment.network import network


def _file(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_cards_and_ports(tmp_path: Path) -> None:
    pci = tmp_path / "sys/devices/pci/0000:3b:00.0"
    pci.mkdir(parents=True)
    driver = tmp_path / "sys/bus/pci/drivers/mlx5_core"
    driver.mkdir(parents=True)
    (pci / "driver").symlink_to(driver)
    for name, text in {"speed": "200000", "mtu": "9000", "operstate": "up"}.items():
        _file(tmp_path, f"sys/class/net/ens1/{name}", text)
    for name, text in {"speed": "-1", "mtu": "1500", "operstate": "down"}.items():
        _file(tmp_path, f"sys/class/net/ens2/{name}", text)
    _file(tmp_path, "sys/class/net/lo/mtu", "65536")
    ib = "sys/class/infiniband/mlx5_0"
    for name, text in {
        "fw_ver": "28.39.1002",
        "board_id": "MT_0000000838",
        "hca_type": "MT4129",
        "ports/1/state": "4: ACTIVE",
        "ports/1/rate": "400 Gb/sec (4X NDR)",
        "ports/1/link_layer": "InfiniBand",
    }.items():
        _file(tmp_path, f"{ib}/{name}", text)
    for place in ("sys/class/net/ens1", "sys/class/net/ens2", ib):
        (tmp_path / place / "device").symlink_to(pci)
    unknown: dict[str, str] = {}
    found = network(unknown, tmp_path)
    assert list(found) == ["ens1", "ens2", "mlx5_0"]
    assert found["ens1"]["speed"] == 200_000
    assert (found["ens1"]["driver"], found["ens1"]["device"]) == ("mlx5_core", "0000:3b:00.0")
    assert found["ens2"]["speed"] is None
    assert unknown["network.ens2.speed"] == "the driver does not say (operstate down)"
    assert found["mlx5_0"] == {
        "driver": "mlx5_core",
        "firmware": "28.39.1002",
        "board": "MT_0000000838",
        "type": "MT4129",
        "device": "0000:3b:00.0",
        "ports": {"1": {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}},
    }


def test_a_machine_without_cards_says_so(tmp_path: Path) -> None:
    unknown: dict[str, str] = {}
    assert network(unknown, tmp_path) == {}
    assert unknown == {"network": "no card with a device in /sys/class/net"}


def test_this_machines_cards_are_those_with_a_device() -> None:
    cards = {path.parent.name for path in Path("/sys/class/net").glob("*/device")}
    assert cards <= network({}).keys()
