"""What is a secret or a name by its own name or shape; what stands in its place, and in which forms it is found."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from urllib.parse import quote, quote_plus

import jinja2.filters
import markupsafe
import pytest

from detsweep.bundling.assignments import assignments, override_values
from detsweep.bundling.names import Names
from detsweep.bundling.patterns import SHAPES, kind_of, nodes, shaped
from detsweep.bundling.redacting import Redactor
from detsweep.bundling.vocabulary import own
from detsweep.environment import KEPT_NAMES
from detsweep.mitigations import catalogue
from tests.bundling.planting import LETTERS
from tests.bundling.planting import SHAPES as PLANTED

SECRET = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GITHUB_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY",
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "DB_PASSWORD",
    "MYSQL_PWD", "PGPASSWORD", "RSYNC_PASSWORD", "MLFLOW_TRACKING_PASSWORD", "REGISTRY_AUTH", "X_AUTHORIZATION",
    "SSH_PRIVATE_KEY", "SESSION_ID", "COOKIE", "SLACK_WEBHOOK_URL", "SENTRY_DSN", "NETRC", "KRB5_KEYTAB", "apikey",
    "authToken", "client_secret", "password", "PASSPHRASE", "SIGNING_KEY", "env.whatever_auth", "env.X_KEY", "DB_PASS",
    "HF_TOKENS", "GITHUB_PAT", "X-Amz-Signature", "BEARER", "JWT", "db_pass", "ftp_pass", "openai_key", "passcode",
    "DATABASE_URL", "REDIS_URL", "ID_RSA", "id_ed25519", "api_tokens", "AZURE_SAS", "MY_JWT",
)  # fmt: skip
NO_SECRET = (
    "PWD", "OLDPWD", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "num_tokens", "AUTHOR", "sessions", "session", "key",
    "keys", "PATH", "HOME", "TERM", "author", "compute_partition", "MONKEY", "PASSED", "pass", "KEYBOARD",
    "forward_pass", "backward_pass", "first_pass", "num_batched_tokens", "MAX_NUM_BATCHED_TOKENS", "PROMPT_TOKENS",
    "TOKENS_PER_STEP", "PATH_X", "LD_LIBRARY_PATH", "MLFLOW_TRACKING_URI", "sort_key", "signature", "cache_key",
)  # fmt: skip


@pytest.mark.parametrize("name", SECRET)
def test_the_name_says_that_the_value_is_secret(name: str) -> None:
    assert kind_of(name) == "secret"
    assert kind_of(f"overrides.{name}") == "secret"


@pytest.mark.parametrize("name", NO_SECRET)
def test_an_ordinary_name_says_nothing(name: str) -> None:
    assert kind_of(name) is None


def test_no_variable_that_changes_bits_is_taken_for_a_secret_or_a_name() -> None:
    assert {name: kind for name in (*catalogue(), *KEPT_NAMES) if (kind := kind_of(name))} == {}


def test_no_word_of_detsweeps_own_is_one_under_which_a_secret_stands() -> None:
    assert [word for word in own() if kind_of(word) not in (None, "uuid", "serial")] == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("launch.account", "account"),
        ("SLURM_JOB_ACCOUNT", "account"),
        ("SBATCH_PARTITION", "partition"),
        ("--partition", "partition"),
        ("launch.nodelist", "nodes"),
        ("SLURM_JOB_NODELIST", "nodes"),
        ("launch.qos", "qos"),
        ("USER", "user"),
        ("HOSTNAME", "node"),
        ("MASTER_ADDR", "node"),
        ("overrides.fault.node", "node"),
        ("device.uuid", "uuid"),
        ("board_serial", "serial"),
    ],
)
def test_other_names_say_what_their_values_are(name: str, kind: str) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize("name", [name for name in PLANTED if name not in ("wandb", "bearer")])
@pytest.mark.parametrize("text", ["{}", "x={}", '"{}",', "({})", "a {}\n", "https://host/?t={}"])
def test_a_token_is_known_by_its_shape_wherever_it_stands(name: str, text: str) -> None:
    assert ("secret", PLANTED[name]) in list(shaped(text.format(PLANTED[name])))


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("Authorization: Basic dXNlcjpwYXNz", "secret", "dXNlcjpwYXNz"),
        ("curl -H 'authorization: bearer abcdefghijkl1'", "secret", "abcdefghijkl1"),
        (f"wandb: Currently logged in. {'0a' * 20}", "secret", "0a" * 20),
        ("machine api.wandb.ai login user password 12ab34", "secret", "12ab34"),
        ("git clone https://me:s3cret!@host/x", "secret", "s3cret!"),
        (f"git+https://{LETTERS}@host/x", "secret", LETTERS),
        ("curl -u me:s3cretpw https://h", "secret", "s3cretpw"),
        ("curl -sSLu me:s3cretpw https://h", "secret", "s3cretpw"),
        ("curl --user='me:two words' https://h", "secret", "two words"),
        ("curl -X POST \\\n  -u me:s3cretpw", "secret", "s3cretpw"),
        ("https://b.s3/x?X-Amz-Credential=AKIAPLANTED%2F2026&X-Amz-Signature=0a1b2c3d", "secret", "0a1b2c3d"),
        ("https://b.s3/x?X-Amz-Credential=AKIAPLANTED%2F2026&X-Amz-Signature=0a1b2c3d", "secret", "AKIAPLANTED%2F2026"),
        ("https://a.blob/x?sv=2024&sig=ab%2Bcd%3D", "secret", "ab%2Bcd%3D"),
        ("https://b.s3/x?AWSAccessKeyId=PLANTED1&Signature=q1w2e3%3D", "secret", "q1w2e3%3D"),
        ("https://b.s3/x?AWSAccessKeyId=PLANTED1&Signature=q1w2e3%3D", "secret", "PLANTED1"),
        ("https://a.blob/x?sv=2024&amp;sig=ab%2Bcd%3D", "secret", "ab%2Bcd%3D"),
        ("from a.b+c@mail.example.org.", "mail", "a.b+c@mail.example.org"),
        ("peer 10.1.2.3:29500", "ip", "10.1.2.3"),
        ("tcp://[2001:db8::1]:80", "ip", "2001:db8::1"),
        ("inet6 fe80::a00:27ff:fe4e:66a1/64", "ip", "fe80::a00:27ff:fe4e:66a1"),
        ("ether 08:00:27:4e:66:a1 txqueuelen", "mac", "08:00:27:4e:66:a1"),
        ("GPU-0a1b2c3d-1111-2222-3333-444455556666", "uuid", "0a1b2c3d-1111-2222-3333-444455556666"),
        ("Serial Number   : 1320017000001", "serial", "1320017000001"),
        ("node_guid: 0x506b4b0300c2a3f1", "uuid", "0x506b4b0300c2a3f1"),
        ("/home/mallory/x.py", "user", "mallory"),
    ],
)
def test_what_else_is_known_by_its_shape(text: str, kind: str, value: str) -> None:
    assert (kind, value) in list(shaped(text))


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:80 and ::1 and 0.0.0.0", "libcublas.so.12.4.5.8", "version 1.2.3", "at 12:03:44 or 1:02:03:04",
        "c10::Error at::native::add", "0000:3b:00.0", "sk-learn", "the token embedding", "10868,16360533414170460154",
        "curl -o x https://h:80/y", "python -u train.py:main", "sig=SIGTERM", "f(x; sig=11)",
        "blocks.0.attention.qkv.weight", "0/1 of 4/4", "std::vector<int>::push_back", "2026-01-31 14-05-59",
    ],
)  # fmt: skip
def test_what_only_looks_like_one_is_none(text: str) -> None:
    assert list(shaped(text)) == []


def test_every_shape_has_what_must_be_there_for_it_in_small_letters() -> None:
    assert all(literal == literal.lower() and literals for literals, _ in SHAPES.values() for literal in literals)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("so A_TOKEN=abc next", [("A_TOKEN", "abc")]),
        ("A_TOKEN=abc next", [("A_TOKEN", "abc next"), ("A_TOKEN", "abc")]),
        ("X=1\nA_TOKEN=one two \nB=2", [("A_TOKEN", "one two"), ("A_TOKEN", "one")]),
        ("[rank0]: export A_TOKEN=a | b", [("A_TOKEN", "a | b"), ("A_TOKEN", "a")]),
        ("A_TOKEN=abc python train.py", [("A_TOKEN", "abc")]),
        ("A_TOKEN=abc B=2 ./run.sh x", [("A_TOKEN", "abc")]),
        ("A_TOKEN=abc B=2", [("A_TOKEN", "abc")]),
        ("A_TOKEN=abc some --option", [("A_TOKEN", "abc")]),
        ("a_token=abc next", [("a_token", "abc")]),
        ("login --password hunter2 --token=x", [("--password", "hunter2"), ("--token", "x"), ("token", "x")]),
        ("DATABASE_URL=postgres://u:p@h/d", [("DATABASE_URL", "postgres://u:p@h/d")]),
        ("export A_TOKEN='a b c'", [("A_TOKEN", "a b c")]),
        ('{"A_TOKEN": "x\\"y", "b": 1}', [("A_TOKEN", 'x\\"y')]),
        ("{'A_TOKEN': 'x y'}", [("A_TOKEN", "x y")]),
        ('"{\\"A_TOKEN\\": \\"xyz\\"}"', [("A_TOKEN", "xyz")]),
        ("url=https://h/?api_key=k1&x=2", [("api_key", "k1")]),
        ("--api-key=abc --account phys", [("--api-key", "abc"), ("--account", "phys")]),
        ("X-Auth-Token: 12345abcdefgh", [("Token", "12345abcdefgh")]),
        ('"A_SECRET": "not closed', [("A_SECRET", "not")]),
        ("token: embedding", []),
        ("A_TOKEN=", []),
        ('"A_TOKEN": {"status": "set"}', []),
        ('"A_TOKEN": null', []),
        ("A_TOKEN\nnext=1", []),
    ],
)
def test_what_a_text_assigns(text: str, found: list[tuple[str, str]]) -> None:
    assert [(one.name, one.value) for one in assignments(text)] == found
    assert all(text[one.start : one.end] == one.value for one in assignments(text))


def test_the_values_of_an_override() -> None:
    assert override_values("a,b") == ["a", "b"]
    assert override_values("'a,b'") == ["a,b"]
    assert override_values("'a,b','c d',e") == ["a,b", "c d", "e"]
    assert override_values("'it\\'s',\"x\"") == ["it's", "x"]
    assert override_values("a,,b") == ["a", "", "b"]


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("node[1-3,7],login", ["node1", "node2", "node3", "node7", "login"]),
        ("gpu[08-10]-a", ["gpu08-a", "gpu09-a", "gpu10-a"]),
        ("one two", ["one", "two"]),
        ("x[1-999999999]", []),
    ],
)
def test_lists_of_nodes(text: str, listed: list[str]) -> None:
    assert nodes(text) == listed


def _names(*values: tuple[str, str], vocabulary: frozenset[str] = frozenset()) -> Names:
    names = Names(vocabulary)
    for kind, value in values:
        names.add(kind, value)
    names.settle()
    return names


VALUE = "p\"a's\\s é/+=&<1>|%$"


@pytest.mark.parametrize(
    "form",
    [
        VALUE, json.dumps(VALUE), json.dumps(VALUE, ensure_ascii=False), json.dumps(json.dumps(VALUE)), repr(VALUE),
        quote(VALUE), quote(VALUE, safe=""), VALUE.encode().hex(), base64.b64encode(VALUE.encode()).decode(),
        base64.urlsafe_b64encode(VALUE.encode()).decode(),
        str(markupsafe.escape(VALUE)), html.escape(VALUE), str(jinja2.filters.htmlsafe_json_dumps(VALUE)),
        VALUE.replace("|", "\\|"), str(markupsafe.escape(VALUE)).replace("|", "\\|"), VALUE.replace('"', '""'),
        VALUE.replace("'", "''"), shlex.quote(VALUE), VALUE.replace("'", "'\\''"), quote_plus(VALUE),
        re.sub("%..", lambda found: found[0].lower(), quote(VALUE)), json.dumps(VALUE).replace("/", "\\/"),
        re.sub(r'(["$\\`])', r"\\\1", VALUE),
        *(base64.b64encode(b"x" * n + VALUE.encode() + b"y" * 3).decode() for n in range(1, 7)),
    ],
)  # fmt: skip
def test_a_secret_is_found_and_replaced_in_every_form(form: str) -> None:
    names = _names(("secret", VALUE))
    assert names.found(f"a {form} b".encode(), text=True) == ["REDACTED-1"]
    told = names.replaced(f"a {form} b")
    assert "REDACTED-1" in told
    assert names.found(told.encode(), text=True) == []


def test_it_is_found_in_bytes_of_two_bytes_a_letter() -> None:
    assert _names(("secret", "correct-horse")).found("x correct-horse".encode("utf-16-le"), text=False) == [
        "REDACTED-1"
    ]


@pytest.mark.parametrize(
    ("kind", "value", "text", "told"),
    [
        ("secret", "zq7", "zq7 azq7 zq7b", "REDACTED-1 azq7 zq7b"),
        ("secret", "deadbeef", "deadbeef 00deadbeef00", "REDACTED-1 00deadbeef00"),
        ("secret", "correct-horse", "xcorrect-horsex", "xREDACTED-1x"),
        ("secret", "12", "12 blocks.12", "12 blocks.12"),
        ("node", "vm", "vm VM: vmlinuz", "node-1 node-1: vmlinuz"),
        ("node", "gpu7", "\x1b[32mgpu7\x1b[0m \x1b[1;31mgpu7", "\x1b[32mnode-1\x1b[0m \x1b[1;31mnode-1"),
        ("user", "al", "/x/al/y_al al2", "/x/user-1/y_user-1 al2"),
        ("path", "/a/b", "/a/b/c /a/bc x/a/b /a/b.", "PATH/c /a/bc x/a/b PATH."),
    ],
)
def test_where_a_name_is_replaced(kind: str, value: str, text: str, told: str) -> None:
    names = Names()
    names.add(kind, value, "PATH" if kind == "path" else None)
    names.settle()
    assert names.replaced(text) == told
    assert names.found(told.encode(), text=True) == []


def test_a_node_with_and_without_its_domain_is_one_node_and_lists_are_replaced() -> None:
    names = _names(("node", "gpu2"), ("node", "gpu10"), ("node", "GPU2.a.example.com"))
    assert names.replaced("gpu10 gpu2 gpu2.a.example.com gpu[2-9,10].a gpus[1]") == "node-2 node-1 node-1 nodes gpus[1]"


def test_an_ordinary_word_is_replaced_only_beside_its_name() -> None:
    names = _names(("secret", "tiny"), vocabulary=frozenset(["tiny"]))
    redactor = Redactor(names, frozenset())
    assert redactor.text("model=tiny PASSWORD=tiny tiny") == "model=tiny PASSWORD=REDACTED-1 tiny"
    assert names.ordinary() == 1


def test_a_secret_inside_words_of_detsweeps_own_leaves_these_whole() -> None:
    names = _names(("secret", "layers"), vocabulary=frozenset(["num_layers_x"]))
    assert names.replaced('"num_layersx": 4, layers') == '"num_layersx": 4, REDACTED-1'


def test_no_label_holds_what_is_removed() -> None:
    names = _names(("node", "node-1"), ("node", "redacted"), ("secret", "Secret-9x"), ("user", "node"))
    told = names.replaced("node-1 redacted Secret-9x node")
    assert names.found(told.encode(), text=True) == []
    assert len(set(told.split())) == 4


def test_json_keeps_its_numbers_keys_and_digests() -> None:
    names = _names(("secret", "12345678"), ("node", "block"), ("user", "loss"))
    value = {"loss": 12345678, "digest": "0012345678ff", "block": "block", "n": [1.5, None, True, "12345678"]}
    told = Redactor(names, frozenset(["loss", "block", "digest", "n"])).json(value)
    assert told == {"loss": 12345678, "digest": "0012345678ff", "block": "node-1", "n": [1.5, None, True, "REDACTED-1"]}


def test_keys_that_become_one_stay_two() -> None:
    names = _names(("node", "gpu1"), ("node", "gpu1.example.com"))
    told = Redactor(names, frozenset()).json({"gpu1": 1, "gpu1.example.com": 2})
    assert told == {"node-1": 1, "node-1 (2)": 2}


def test_a_command_is_replaced_word_by_word_and_stays_one() -> None:
    names = _names(("secret", "a b"), ("secret", "on"))
    command = "python -m detsweep '+env.A_TOKEN=a b' env.B_SECRET=on x=on"
    told = Redactor(names, frozenset()).json({"command": command})["command"]
    assert told == "python -m detsweep +env.A_TOKEN=REDACTED-1 env.B_SECRET=REDACTED-2 x=on"


def test_lines_in_which_nothing_is_replaced_stay_as_they_are() -> None:
    text = '{"a":1e-05,"b":"x"}\n{"b":"secret-value"}\n{torn secret-value'
    told = Redactor(_names(("secret", "secret-value")), frozenset()).jsonl(text)
    assert told == '{"a":1e-05,"b":"x"}\n{"b":"REDACTED-1"}\n{torn REDACTED-1'


def test_what_is_left_of_a_secret_in_a_file_name_is_no_part_of_a_digest() -> None:
    names = _names(("secret", "((abc))"))
    assert names.replaced("((abc)) env.A_TOKEN-abc_x 00abc00") == "REDACTED-1 env.A_TOKEN-REDACTED-1_x 00abc00"
