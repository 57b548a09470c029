"""Secrets and names of every kind, planted in a sweep's files; all of them are made up."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

from detsweep.paths import SweepPaths, read_json, write_json

LETTERS = "Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8Qr9St0Uv"
PASSWORD = 'p"ss w\\rd/é=1'  # noqa: S105
KEY_LINES = ("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEA", "AoIBAQC7VJTUt9Us8cKjMzEfYyjiWA4R4ypZ0Gq1Zz9x0000")
SHAPES = {
    "hugging face": "hf_" + LETTERS,
    "github": "ghp_" + LETTERS,
    "github fine": "github_pat_11ABCDEFG0_" + LETTERS,
    "aws": "AKIAIOSFODNN7PLANTED",
    "aws session": "ASIAIOSFODNN7PLANTED",
    "slack": "xoxb-123456789012-" + LETTERS,
    "openai": "sk-proj-" + LETTERS,
    "anthropic": "sk-ant-api03-" + LETTERS,
    "google": "AIzaSy" + LETTERS + "-",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.c2lnbmF0dXJlMTIzNDU2",
    "wandb": "0123456789abcdef0123456789abcdef01234567",
    "bearer": "bearertoken" + LETTERS,
}
"""Tokens that are known by their shape alone, each in a line of a log."""
PERSONAL = {
    "user": "mallory",
    "home": "/home/mallory",
    "mail": "mallory.planted@corp.example.com",
    "node": "gpu-node17",
    "nodes": "gpu-node[",
    "domain": "cluster.corp.example.com",
    "house": "example.com",
    "ip": "10.20.30.41",
    "ipv6": "fd00:1234::77",
    "mac": "de:ad:be:ef:00:17",
    "uuid": "deadbeef-1111-2222-3333-444455556666",
    "serial": "1320017171717",
    "account": "acct-planted",
    "partition": "part-planted",
    "path": "/shared/projects/planted-project/data",
}
BY_NAME = {
    "PLANTED_TOKEN": "totally-secret-value-1",
    "DB_PASSWORD": PASSWORD,
    "MY_API_KEY": "apikeyvalue77",
    "SHORT_SECRET": "zq7",
    "SOME_CREDENTIAL": "984417731",
    "SESSION_COOKIE": "cookie-monster-9",
    "PRIVATE_STUFF": "private/stuff+value",
}
"""Variables of which only the name says that their value is secret."""


def every() -> dict[str, str]:
    """All that must not be found in a bundle that was redacted."""
    key = {f"key line {number}": line for number, line in enumerate(KEY_LINES)}
    return {**SHAPES, **PERSONAL, **BY_NAME, **key, "url": "hunter2-in-a-url"}


def forms(value: str) -> set[bytes]:
    """The ways in which a value may still be there."""
    raw = value.encode()
    coded = {base64.b64encode(raw).rstrip(b"="), base64.urlsafe_b64encode(raw).rstrip(b"=")}
    for shift in (1, 2):
        # In the middle of something longer: the first and last characters have bits of what lies around.
        coded.add(base64.b64encode(b"x" * shift + raw)[2 + shift : -4])
    escaped = {json.dumps(value)[1:-1].encode(), json.dumps(value, ensure_ascii=False)[1:-1].encode()}
    written = {raw, raw.hex().encode(), quote(value, safe="").encode(), value.encode("utf-16-le")}
    return {one for one in written | escaped | coded if len(one) >= 3}


def plant(folder: Path) -> None:
    """Plant them in a finished sweep: in its variables, command lines, logs, configuration, file names and bytes."""
    sweep = SweepPaths(folder)
    session = read_json(sweep.sweep)
    last = session["sessions"][-1]
    words = [f"+env.PLANTED_TOKEN={BY_NAME['PLANTED_TOKEN']}", f"launch.account={PERSONAL['account']}"]
    words += [f"launch.partition={PERSONAL['partition']}", "launch.exclude='gpu-node[17-19]'"]
    last["arguments"] += words
    last["command"] += " " + " ".join(words)
    last["cwd"] = f"{PERSONAL['home']}/work"
    last["host"] = f"{PERSONAL['node']}.{PERSONAL['domain']}"
    write_json(sweep.sweep, session)
    for cell in sweep.all_cells():
        for _, trial in cell.trials():
            job = read_json(trial.job)
            job["host"] = PERSONAL["node"]
            job["environment_set"] |= {**BY_NAME, "SBATCH_PARTITION": PERSONAL["partition"]}
            job["environment_removed"] |= {"NCCL_TOPO_FILE": f"{PERSONAL['path']}/topo.xml"}
            write_json(trial.job, job)
            environment = read_json(trial.environment(0))
            environment |= {"host": PERSONAL["node"], "node": PERSONAL["node"]}
            environment["device"] |= {"uuid": f"GPU-{PERSONAL['uuid']}", "serial": PERSONAL["serial"]}
            environment["variables"]["NCCL_SOCKET_IFNAME"] = "eth0"
            write_json(trial.environment(0), environment)
            trial.rank_log(0).write_text("\n".join(_log()) + "\n", encoding="utf-8")
            (trial.logs / f"nccl-{PERSONAL['node']}-4711.log").write_text(
                f"{PERSONAL['node']}:4711:4711 [0] NCCL INFO NET/IB : Using mlx5_0:1; OOB eth0:{PERSONAL['ip']}<0>\n"
            )
            (trial.folder / "core.bin").write_bytes(b"\0\1\2" + PASSWORD.encode() + b"\0\xff")
            (trial.folder / "clean.bin").write_bytes(bytes(range(256)) * 9)
            (trial.folder / "wide.bin").write_bytes(b"\0\xff" + SHAPES["github"].encode("utf-16-le"))


def _log() -> list[str]:
    """A log as programs write it that do not know better."""
    return [
        *(f"using {value} for now" for name, value in SHAPES.items() if name not in ("bearer", "wandb")),
        f"Authorization: Bearer {SHAPES['bearer']}",
        f"wandb: logged in with key {SHAPES['wandb']}",
        "-----BEGIN PRIVATE KEY-----",
        *KEY_LINES,
        "-----END PRIVATE KEY-----",
        f"[rank0]: {KEY_LINES[1]}",
        "pulling from https://robot:hunter2-in-a-url@registry.corp.example.com/image",
        f"connected to {PERSONAL['ip']}:29500 and [{PERSONAL['ipv6']}]:29500, {PERSONAL['mac']}",
        f"mail {PERSONAL['mail']} or {PERSONAL['user']}@{PERSONAL['node']}",
        "sinfo: gpu-node[17-18,21] down",
        f"search {PERSONAL['domain']}",
        f"host {PERSONAL['node']}.{PERSONAL['domain']}, Serial Number: {PERSONAL['serial']}",
        f'File "{PERSONAL["home"]}/src/train.py", line 3, and {PERSONAL["path"]}/tokens.bin',
        f"GPU-{PERSONAL['uuid']} on sbatch --account {PERSONAL['account']} --partition={PERSONAL['partition']}",
        f"DB_PASSWORD={json.dumps(PASSWORD)}",
        f"config: {json.dumps({'DB_PASSWORD': PASSWORD, 'nested': json.dumps(BY_NAME)})}",
        f"basic {base64.b64encode(f'user:{PASSWORD}'.encode()).decode()}",
        f"?password={quote(PASSWORD, safe='')}&x=1",
        f"{BY_NAME!r}",
        *(f"seen {value} again" for name, value in BY_NAME.items()),
    ]
