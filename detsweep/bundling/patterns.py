"""What a secret and what a name looks like: by what it is called, or by its own shape."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from urllib.parse import unquote

from detsweep.bundling.texts import plain

Found = tuple[str, str]
"""A kind, and the text that is of it."""

# Names of variables and keys whose value is secret, whatever it is. The first are so in any spelling; the others are
# ordinary words too, and count in names that are written as variables are.
_SERVICES = (
    "openai|anthropic|cohere|mistral|groq|gemini|google|azure|aws|gcp|hf|hugging_?face|wandb|comet|neptune|github|gitlab"
    "|nvidia|ngc|slack|stripe|twilio|app|auth|client|master|service|session|deploy|license|host|rsa"
)
_LOGINS = (
    "db|database|sql|mysql|pg|postgres|redis|mongo|ftp|sftp|ssh|smtp|imap|mail|email|ldap|vpn|proxy|http|https|registry"
    "|docker|git|root|admin|sudo|user|login|account|service|svc|server|client|keystore|key|wifi|web|app|api|auth|my"
)
_SECRET = re.compile(
    r"token(?!s|iz)|secret|passw(or)?d|passphrase|passcode|credential|cookie|webhook|keytab|netrc"
    r"|(api|access|private|account|secret|ssh|encryption|signing)[_-]?key"
    r"|(hf|api|auth|access|refresh|bearer|github|gitlab|bot)[_-]?tokens|x-(amz|goog)-signature|id_(rsa|dsa|ecdsa|ed25519)"
    rf"|(^|[_-])(jwt|bearer)$|(^|_)(github|gh|gitlab)_pat$|(^|[_-])({_SERVICES})[_-]?key$|(^|[_-])({_LOGINS})[_-]?pass$",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(
    r"AUTH(?!OR(?!IZ))|PRIVATE|SESSION|SIGNATURE|CERT|(^|_)(KEY|PASS|PWD|PW|DSN|SALT|OTP|PIN|JWT|BEARER|SAS)($|_)"
    r"|(DATABASE|DB|SQL|REDIS|MONGO|MONGODB|POSTGRES|POSTGRESQL|MYSQL|AMQP|RABBITMQ|BROKER|CONNECTION)_UR[LI]$"
    r"|(^|_)(TOKENS|PAT)$"
)
# How many there are of what a model reads, and not what opens a door.
_COUNTED = re.compile(
    r"(^|_)(MAX|MIN|NUM|NO|N|COUNT|TOTAL|NEW|PER|BATCH\w*|SEQ|INPUT|OUTPUT|PROMPT|COMPLETION|CONTEXT|SPECIAL|STOP|PAD"
    r"|TRAIN|EVAL|GLOBAL|LOCAL|MICRO|WARMUP|EXPERT|DROP|LIMIT|WINDOW|CACHED?|PREFILL|DECODE)_(\w+_)?TOKENS$"
)
_VARIABLE = re.compile(r"AUTH(?!OR(?!IZ))|PRIVATE|SESSION|SIGNATURE|CERT|(^|_)(KEY|PASS|PWD|PW|DSN|SALT|OTP|PIN)($|_)")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_NO_SECRETS = ("PWD", "OLDPWD")
_SLURM = r"(?:.*\.)?(?:launch\.(?:sbatch\.)?|--|(?:SLURM|SBATCH|SALLOC|SQUEUE)_(?:JOB_)?)"
_NAMED = (
    ("user", re.compile(r"USER|LOGNAME|USERNAME|SUDO_USER|SLURM_JOB_USER")),
    (
        "node",
        re.compile(r"HOSTNAME|HOST|MASTER_ADDR|DETSWEEP_NODE|SLURMD_NODENAME|SLURM_SUBMIT_HOST|SLURM_TOPOLOGY_ADDR"),
    ),
    ("node", re.compile(r"(?:.*\.)?(?:world|fault)\.node")),
    ("nodes", re.compile(_SLURM + r"(?:nodelist|exclude|node_list|req_node_list)", re.IGNORECASE)),
    *((kind, re.compile(_SLURM + kind, re.IGNORECASE)) for kind in ("account", "partition", "qos", "reservation")),
    ("serial", re.compile(r"(?:.*_)?serial(?:_number|[ ]number)?", re.IGNORECASE)),
    ("uuid", re.compile(r"(?:.*_)?(?:uuid|guid)|unique id", re.IGNORECASE)),
)
NODE_KEYS = ("host", "hosts", "node", "nodes", "hostname", "address")
"""Keys of detsweep's own files under which nodes stand; in other text these words mean anything."""


def kind_of(name: str) -> str | None:
    """What the value of something of this name is: a secret, a user, a node, ...; None where it says nothing.

    `name` may have dots, as a key of the configuration has (`env.HF_TOKEN`).
    """
    last = name.rpartition(".")[2]
    variable = _VARIABLE.fullmatch(last) is not None or re.search(r"(^|\.)env\.", name.lstrip("+~")) is not None
    secret = _SECRET.search(last) or (variable and _SECRET_VARIABLE.search(last.upper()))
    if secret and last not in _NO_SECRETS and not _COUNTED.search(last.upper()):
        return "secret"
    return next((kind for kind, pattern in _NAMED if pattern.fullmatch(name) or pattern.fullmatch(last)), None)


_ALONE = r"(?<![A-Za-z0-9])"
_KEYS = "-----BEGIN [A-Z ]*PRIVATE KEY-----"
_URL = r"[A-Za-z][A-Za-z0-9+.-]*://"
_CURL = (
    r"(?i:curl)\b(?:[^\n]|\\\n){0,500}?[ \t](?:-[A-Za-z]*[uU]|--(?:proxy-)?user)[ =]*"
    r"""(?:'[^:'\n]+:([^'\n]+)'|"[^:"\n]+:([^"\n]+)"|[^\s:"'-][^\s:"']*:([^\s"']+))"""
)
_SIGNED = (
    r"(?:[?&;]|%26|\\u0026)(?i:x-(?:amz|goog)-(?:signature|credential|security-token)|sig|signature|\w*accesskeyid"
    r"|googleaccessid|key-pair-id|(?:\w*[_-])?(?:key|token))=([^\s&\"'<>#;\\]{6,})"
)
# What must be in a text, in small letters, before the pattern is worth a look: most texts have none of it.
_SHAPES: dict[str, tuple[tuple[str, ...], str]] = {
    "Hugging Face": (("hf_", "api_org_"), _ALONE + r"((?:hf|api_org)_[A-Za-z0-9]{16,})"),
    "GitHub": (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), _ALONE + r"(gh[pousr]_[A-Za-z0-9]{20,})"),
    "GitHub, fine-grained": (("github_pat_",), _ALONE + r"(github_pat_[A-Za-z0-9_]{20,})"),
    "GitLab": (("glpat-",), _ALONE + r"(glpat-[\w-]{16,})"),
    "AWS": (("akia", "asia"), _ALONE + r"((?:AKIA|ASIA)[A-Z0-9]{16})(?![A-Za-z0-9])"),
    "Slack": (("xox",), _ALONE + r"(xox[a-z]-[A-Za-z0-9-]{10,})"),
    "OpenAI, Anthropic": (("sk-",), _ALONE + r"(sk-[A-Za-z0-9_-]{16,})"),
    "Stripe": (("k_live_", "k_test_"), _ALONE + r"([sr]k_(?:live|test)_[A-Za-z0-9]{16,})"),
    "Google": (("aiza", "ya29."), _ALONE + r"(AIza[\w-]{30,}|ya29\.[\w-]{20,})"),
    "NVIDIA": (("nvapi-",), _ALONE + r"(nvapi-[\w-]{20,})"),
    "npm, PyPI": (("npm_", "pypi-"), _ALONE + r"(npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,})"),
    "JSON web token": (("eyj",), _ALONE + r"(eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"),
    "wandb": (("wandb",), r"(?i:wandb)[^\n]{0,80}?(?<![0-9A-Za-z])([0-9a-f]{40})(?![0-9A-Za-z])"),
    "bearer": (("bearer",), r"(?i:bearer)\s+([\w.~+/=-]{12,})"),
    "authorization": (
        ("authorization",),
        r"""(?i:authorization)["']?\s*[:=]\s*["']?(?:(?i:bearer|basic|token|digest)\s+)?([^\s"',]{6,})""",
    ),
    "netrc": (("password ",), r"\bpassword\s+([^\s\"']{3,})(?=\s|$)"),
    "private key": (("private key",), rf"({_KEYS}[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----)"),
    "private key, cut": (("private key",), rf"({_KEYS}(?:(?:\s|\\n|\\r)*[A-Za-z0-9+/=]{{16,}})+)"),
    "curl": (
        ("curl",),
        _CURL,
    ),
    "URL, signed": (("sig", "amz-", "goog-", "access", "key-pair-id=", "key=", "token="), _SIGNED),
    "URL": (("://",), _URL + r"[^\s/:@\"']*:([^\s/@\"']+)@"),
    "URL, token": (("://",), _URL + r"([\w-]{16,})@"),
}
SHAPES = {name: (literals, re.compile(pattern)) for name, (literals, pattern) in _SHAPES.items()}
"""Secrets that are known by their shape; the group is the secret."""
_URL_USER = re.compile(_URL + r"([^\s/:@\"']+):[^\s/@\"']+@")
_MAIL = re.compile(r"(?<![\w.%+-])([A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,})(?![\w-])")
_IPV4 = re.compile(r"\b(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})(?!\w)(?!\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])([0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7})(?![\w:])")
_MAC = re.compile(
    r"(?<![0-9A-Za-z:-])([0-9A-Fa-f]{2}(?:([:-])[0-9A-Fa-f]{2})(?:\2[0-9A-Fa-f]{2}){4,18})(?![0-9A-Za-z:-])"
)
_UUID = re.compile(r"(?<![0-9A-Za-z])([0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12})(?![0-9A-Za-z])")
_SERIAL = re.compile(r"(?i:serial)(?:[ _-]?(?i:number|no\.?))?[\"']?\s*[:=]\s*[\"']?([A-Za-z0-9-]*\d[A-Za-z0-9-]{4,})")
_GUID = re.compile(r"(?i:guid)[^\n]{0,20}?(0x[0-9A-Fa-f]{16}|[0-9A-Fa-f]{4}(?::[0-9A-Fa-f]{4}){3})(?![0-9A-Za-z:])")
_HOME = re.compile(r"/(?:home|Users)/([A-Za-z0-9][\w.-]*)")
# What is in the middle of all of these, and begins with a mark, which is looked for far faster than what precedes it.
_DOTTED = re.compile(r"\.\d{1,3}\.\d")
_COLONS = re.compile(r":[0-9A-Fa-f]{0,4}:")
_DASHES = re.compile(r"-[0-9A-Fa-f]{2,4}-")


def shaped(text: str) -> Iterator[Found]:
    """Secrets and names in a text that are known by their shape; each as often as it comes."""
    text = plain(text)
    lower = text.lower()
    yield from _secrets(text, lower)
    if "@" in text:
        yield from (("mail", match[1]) for match in _MAIL.finditer(text))
        yield from (("user", match[1]) for match in _URL_USER.finditer(text))
    for match in _IPV4.finditer(text) if _DOTTED.search(text) else ():
        # Not where it goes on to the left, as in a version or the name of a library.
        if text[max(match.start() - 1, 0) : match.start()] != "." and _is_address(match[1]):
            yield "ip", match[1]
    colons, dashes = _COLONS.search(text), _DASHES.search(text)
    if colons or dashes:
        yield from (("mac", match[1]) for match in _MAC.finditer(text))
    if dashes:
        yield from (("uuid", match[1]) for match in _UUID.finditer(text))
    if colons:
        yield from (("ip", match[1]) for match in _IPV6.finditer(text) if len(match[1]) > 5 and _is_address(match[1]))
    if "serial" in lower:
        yield from (("serial", match[1]) for match in _SERIAL.finditer(text))
    if "guid" in lower:
        yield from (("uuid", match[1]) for match in _GUID.finditer(text))
    if "/home/" in text or "/Users/" in text:
        yield from (("user", match[1]) for match in _HOME.finditer(text))


def _secrets(text: str, lower: str) -> Iterator[Found]:
    for name, (literals, pattern) in SHAPES.items():
        for match in pattern.finditer(text) if any(literal in lower for literal in literals) else ():
            place = match.lastindex or 0
            yield "secret", match[place]
            if name == "URL, signed":
                yield from (("secret", one) for one in _in_parameter(match[1]))
            elif name == "curl":
                yield "user", re.split(r"[\s='\"]", text[match.start() : match.start(place) - 1])[-1]


def _in_parameter(value: str) -> Iterator[str]:
    """What a parameter of a URL says without its escapes, and of a credential the id that it begins with."""
    said = unquote(value)
    if said != value:
        yield said
    if "/" in said and len(said.partition("/")[0]) >= _LONG_ID:
        yield said.partition("/")[0]


_LONG_ID = 8


def _is_address(text: str) -> bool:
    """Whether it is an address of some machine, and not of every one (127.0.0.1, ::1, 0.0.0.0)."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or text.startswith("255."))


def nodes(text: str) -> list[str]:
    """The nodes of a list as Slurm writes it: node[1-3,7],login."""
    found = []
    for part in re.findall(r"[^\s,\[\]]+(?:\[[^\]]*\])?[^\s,\[\]]*", text):
        prefix, bracket, rest = part.partition("[")
        numbers, _, suffix = rest.partition("]")
        if not bracket:
            found.append(part)
            continue
        for span in numbers.split(","):
            first, dash, last = span.partition("-")
            if not first.isdigit() or (dash and not last.isdigit()) or int(last or first) - int(first) > _MANY:
                continue
            width = len(first)
            found += [f"{prefix}{n:0{width}d}{suffix}" for n in range(int(first), int(last or first) + 1)]
    return found


_MANY = 100_000
