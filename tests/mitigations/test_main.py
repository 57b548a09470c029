"""`python -m detsweep.mitigations` as anyone's launcher runs it: real commands, what they print, how they end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from detsweep.mitigations import PLATFORMS, catalogue, load_presets
from detsweep.paths import conf_dir

PRESETS = load_presets([conf_dir()])
COMMAND = (sys.executable, "-m", "detsweep.mitigations")
PRIMUS = {
    "PRIMUS_DETERMINISTIC": "1",
    "NCCL_ALGO": "Ring",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
    "ROCBLAS_DEFAULT_ATOMICS_MODE": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "PRIMUS_TURBO_AUTO_TUNE": "0",
    "TE_HIPBLASLT_TUNING_RUN_COUNT": "0",
    "TE_HIPBLASLT_TUNING_ALGO_COUNT": "0",
}
MEGATRON = {"NCCL_ALGO": "Ring", "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def _environment(**variables: str) -> dict[str, str]:
    """This shell's environment with nothing of the catalogue in it but these."""
    return {**{name: value for name, value in os.environ.items() if name not in catalogue()}, **variables}


def _run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], env=_environment(**variables), capture_output=True, text=True, timeout=60, check=False
    )


def _printed(*words: str) -> str:
    done = _run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def _rows(table: str) -> dict[str, str]:
    """The rows of a table by their first word, the header left out."""
    return {line.split()[0]: line for line in table.splitlines()[1:]}


@pytest.fixture(scope="module")
def whole() -> str:
    """The table of all presets."""
    return _printed("list")


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """A configuration folder with two presets of a user's own, one of which has a name that is taken."""
    folder = tmp_path / "own"
    (folder / "mitigation").mkdir(parents=True)
    mine = "mine: {env: {OUR_FLAG: 7, NCCL_ALGO: Ring}, torch: {cudnn_benchmark: false}, expect: 'more [bold]care'}\n"
    (folder / "mitigation" / "mine.yaml").write_text(mine)
    (folder / "mitigation" / "te_det.yaml").write_text("te_det: {env: {OTHER: 1}}\n")
    return folder


def test_a_row_for_each_preset_says_what_it_is(whole: str) -> None:
    rows = _rows(whole)
    assert list(rows) == list(PRESETS)
    for name, preset in PRESETS.items():
        assert re.search(rf"^{name} +{','.join(preset.platforms) or 'all'} ", rows[name])
        assert f" {preset.expect}" in rows[name]
        assert rows[name].endswith(f" {preset.cost}")
    assert whole.split("\n", maxsplit=1)[0].split() == ["name", "platforms", "sets", "expected", "effect", "cost"]


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("nccl_ring", "NCCL_ALGO=Ring"),
        ("hipblaslt_no_override", "HIPBLASLT_TUNING_OVERRIDE_FILE unset"),
        ("torch_det_nofill", "deterministic_algorithms=strict, fill_uninitialized_memory=False"),
        ("none", "nothing"),
        ("cudnn_det", "= cudnn_deterministic + cudnn_no_benchmark"),
        ("megatron", "= nccl_ring + te_det + cublas_ws + torch_strict"),
        ("primus", "= primus_flag + nccl_ring + te_det + 4 more"),
        ("primus_v4_eager", "= v4_no_rmsnorm_triton + v4_no_rope_triton + v4_no_sinkhorn_triton + 12 more"),
    ],
)
def test_what_a_preset_sets_is_short(whole: str, name: str, sets: str) -> None:
    assert f"  {sets}  " in _rows(whole)[name]


def test_no_command_is_the_table(whole: str) -> None:
    assert _printed() == whole


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("words", [("list",), ()], ids=["list", "no command"])
def test_a_platform_shows_what_has_a_place_there(words: tuple[str, ...], platform: str) -> None:
    expected = [name for name, preset in PRESETS.items() if not preset.platforms or platform in preset.platforms]
    assert list(_rows(_printed(*words, "--platform", platform))) == expected
    assert 0 < len(expected) < len(PRESETS)


def test_presets_of_ones_own_are_listed_and_do_not_take_a_name_over(own_folder: Path) -> None:
    rows = _rows(_printed("list", "--config-dir", str(own_folder)))
    assert list(rows) == sorted([*PRESETS, "mine"])
    assert "OUR_FLAG=7, NCCL_ALGO=Ring, cudnn_benchmark=False" in rows["mine"]
    assert "more [bold]care" in rows["mine"]
    assert "NVTE_ALLOW_NONDETERMINISTIC_ALGO=0" in rows["te_det"]


def test_everything_about_a_preset() -> None:
    text = _printed("show", "primus")
    preset = PRESETS["primus"]
    assert text.startswith("primus\n  platforms amd\n  expect    one order in collectives, no compiled kernels")
    for said in (preset.expect, preset.cost, preset.reads, preset.source, ", ".join(preset.members), *preset.advice):
        assert said in text
    assert "conf/mitigation/primus.yaml\n" in text
    for name, value in PRIMUS.items():
        variable = catalogue()[name]
        (block,) = re.findall(rf"^  {name}={value}\n((?:    .*\n)+)", text, re.MULTILINE)
        facts = dict(re.findall(r"^    (read by|\w+) +(.*)$", block, re.MULTILINE))
        assert facts.pop("read by").startswith(", ".join(variable.readers) + ", ")
        assert facts == {key: getattr(variable, key) for key in ("values", "default", "effect", "cost", "source")}


def test_when_a_variable_is_read_is_said_in_words() -> None:
    text = _printed("show", "nccl_ring", "seeded", "torch_det", "hipblaslt_no_override", "cpu_1thread")
    assert "\n\nseeded\n" in text
    for said in (
        "  NCCL_ALGO=Ring\n    read by   nccl, rccl, when a communicator is created\n",
        "  PYTHONHASHSEED=0\n    read by   python, at process start\n",
        "  HIPBLASLT_TUNING_OVERRIDE_FILE unset\n    read by   hipblaslt, when a handle is created, or at first use\n",
        (
            "  deterministic_algorithms=strict\n    read by   torch, where it is set in the training process\n"
            "    values    off, warn, strict\n"
        ),
        "    values    False, True\n",
        "    values    1 or more\n",
    ):
        assert said in text


def test_every_preset_can_be_shown() -> None:
    text = _printed("show", *PRESETS)
    assert [line for line in text.splitlines() if line and not line.startswith(" ")] == list(PRESETS)


def test_a_variable_of_ones_own_is_not_in_the_catalogue(own_folder: Path) -> None:
    text = _printed("show", "mine", "--config-dir", str(own_folder))
    assert "  OUR_FLAG=7\n    read by   not known: the catalogue does not have it\n" in text
    assert f"  file      {own_folder}/mitigation/mine.yaml\n" in text
    assert "  source    " not in text.split("OUR_FLAG")[0]


def test_the_catalogue_is_a_table() -> None:
    table = _printed("variables")
    rows = _rows(table)
    assert list(rows) == sorted(catalogue())
    for name, variable in catalogue().items():
        assert re.search(rf"^{name} +{','.join(variable.readers)} +{variable.read} ", rows[name])
        assert f" {variable.default} " in rows[name]
        assert f" {variable.effect} " in rows[name]
        assert rows[name].endswith(f" {variable.use}")
    assert table.split("\n", maxsplit=1)[0].split() == ["name", "readers", "read", "default", "effect", "use"]


@pytest.mark.parametrize("prefix", ["NCCL_SYM_", "nccl_sym_"])
def test_a_prefix_shows_one_family(prefix: str) -> None:
    assert list(_rows(_printed("variables", prefix))) == [
        "NCCL_SYM_CE_THRESHOLD",
        "NCCL_SYM_CTAS",
        "NCCL_SYM_GIN_KERNELS_ENABLE",
        "NCCL_SYM_KERNEL",
        "NCCL_SYM_TMA_ENABLE",
    ]


def _on_a_terminal(width: int, *words: str) -> list[str]:
    """The lines that a command prints on a terminal of this many columns, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    # A width in the environment would come before the terminal's own.
    environment = {
        name: value for name, value in _environment(TERM="xterm").items() if name not in ("COLUMNS", "LINES")
    }
    with subprocess.Popen([*COMMAND, *words], stdout=theirs, env=environment) as process:
        os.close(theirs)
        text = b""
        try:
            while piece := os.read(ours, 65536):
                text += piece
        except OSError:  # on Linux, what a terminal without a writer says
            pass
        os.close(ours)
        assert process.wait(60) == 0
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.decode().split("\r\n")]


@pytest.mark.parametrize(
    ("words", "width", "left_out"),
    [
        (("list",), 80, "cost, platforms"),
        (("list",), 120, None),
        (("variables",), 80, "default, readers, use"),
        (("variables",), 200, None),
    ],
)
def test_a_table_fits_into_a_terminal(words: tuple[str, ...], width: int, left_out: str | None) -> None:
    lines = _on_a_terminal(width, *words)
    assert max(len(line) for line in lines) <= width
    starts = {line.split()[0] for line in lines if line and not line.startswith(" ")}
    assert set(PRESETS if words == ("list",) else catalogue()) <= starts
    said = [line for line in lines if line.startswith("(")]
    assert said == ([f"(too wide for here: {left_out}; a pipe or a file gets all)"] if left_out else [])


LAUNCHER = """
set -u
launch() {{
    {command} check primus && echo "launched: $1"
}}
export {primus}
launch "all set"
unset ROCBLAS_DEFAULT_ATOMICS_MODE
launch "one unset"; echo "left with $?"
export ROCBLAS_DEFAULT_ATOMICS_MODE=0 NCCL_ALGO=Tree
launch "one otherwise"
"""


def test_a_foreign_launcher_is_stopped_by_what_is_missing() -> None:
    script = LAUNCHER.format(
        command=" ".join(COMMAND), primus=" ".join(f"{name}={value}" for name, value in PRIMUS.items())
    )
    done = subprocess.run(
        ["bash", "-c", script], env=_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "launched: all set\nleft with 1\n"
    assert done.stderr.splitlines() == [
        "detsweep: primus: ROCBLAS_DEFAULT_ATOMICS_MODE must be 0, is unset",
        "detsweep: primus: NCCL_ALGO must be Ring, is Tree",
    ]
    assert done.returncode == 1


def test_what_is_all_set_is_passed_over_in_silence() -> None:
    done = _run("check", "primus", "nccl_ring", "none", **PRIMUS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_setting_is_one_line_with_all_that_ask_for_it() -> None:
    done = _run("check", "nccl_ring", "primus", "nccl_ring", "gdr_flush", PRIMUS_DETERMINISTIC="1")
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert lines[0] == "detsweep: nccl_ring+primus: NCCL_ALGO must be Ring, is unset"
    assert len(lines) == len(set(lines)) == len(PRIMUS) - 1 + 2
    assert "detsweep: gdr_flush: NCCL_GDR_FLUSH_DISABLE must be 0, is unset" in lines


def test_a_variable_that_must_be_unset_is_checked() -> None:
    assert _run("check", "hipblaslt_no_override").returncode == 0
    done = _run("check", "hipblaslt_no_override", HIPBLASLT_TUNING_OVERRIDE_FILE="")
    assert done.returncode == 1
    assert done.stderr == "detsweep: hipblaslt_no_override: HIPBLASLT_TUNING_OVERRIDE_FILE must be unset, is \n"


def test_switches_are_left_to_the_training_process() -> None:
    done = _run("check", "megatron", **MEGATRON)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "detsweep: megatron: deterministic_algorithms must be strict: checked in the training process, "
        'by detsweep.mitigations.require("megatron")\n'
    )


def test_variables_alone_can_be_asked_for() -> None:
    done = _run("check", "megatron", "--env-only", **MEGATRON)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = _run("check", "--env-only", "megatron", **{**MEGATRON, "NCCL_ALGO": "Tree"})
    assert (done.returncode, done.stderr) == (1, "detsweep: megatron: NCCL_ALGO must be Ring, is Tree\n")


def test_the_call_for_the_training_process_names_all_that_have_switches(own_folder: Path) -> None:
    done = _run("check", "nccl_ring", "cudnn_det", "mine", f"--config-dir={own_folder}", NCCL_ALGO="Ring", OUR_FLAG="7")
    call = f'detsweep.mitigations.require("cudnn_det", "mine", config_dir="{own_folder}")'
    where = f"checked in the training process, by {call}"
    assert done.stderr.splitlines() == [
        f"detsweep: cudnn_det: cudnn_deterministic must be True: {where}",
        f"detsweep: cudnn_det+mine: cudnn_benchmark must be False: {where}",
    ]
    # What it says can be run as it stands.
    code = f"import detsweep.mitigations, torch; torch.backends.cudnn.deterministic = True; {call}"
    process = [sys.executable, "-c", code]
    subprocess.run(process, env=_environment(NCCL_ALGO="Ring", OUR_FLAG="7"), timeout=120, check=True)


VALID = ", ".join(PRESETS)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("check", "primsu"),
            f"mitigation=primsu: no such mitigation; did you mean primus?; valid: {VALID}",
        ),
        (("show", "te_det", "zzz"), f"mitigation=zzz: no such mitigation; valid: {VALID}"),
        (
            ("check", "torch_det", "torch_det_warn"),
            (
                "deterministic_algorithms cannot be both strict (mitigation 'torch_det') and warn "
                "(mitigation 'torch_det_warn')"
            ),
        ),
        (
            ("check", "--env-only", "torch_det", "recipe"),
            "deterministic_algorithms cannot be both strict (mitigation 'torch_det') and warn (mitigation 'recipe')",
        ),
        (("chck", "primus"), "chck: no such command; did you mean check?; valid: list, show, variables, check"),
        (("primus",), "primus: no such command; valid: list, show, variables, check"),
        (("check",), "the following arguments are required: NAME"),
        (("show",), "the following arguments are required: NAME"),
        (("list", "primus"), "unrecognized arguments: primus"),
        (("check", "primus", "--fix"), "unrecognized arguments: --fix"),
        (("--fix",), "unrecognized arguments: --fix"),
        (("variables", "NCLL_"), "NCLL_: no variable of the catalogue begins like this"),
        (
            ("variables", "nccl_algos"),
            "nccl_algos: no variable of the catalogue begins like this; did you mean NCCL_ALGO?",
        ),
        (("list", "--config-dir", "nowhere"), "--config-dir nowhere: has no folder mitigation"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_one_line(words: tuple[str, ...], line: str) -> None:
    done = _run(*words, **PRIMUS)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"detsweep: {line}")
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_platform_is_told_which_there_are() -> None:
    done = _run("list", "--platform", "gpu")
    assert done.returncode == 2
    assert re.fullmatch(r"detsweep: argument --platform: invalid choice: 'gpu' \(.*cpu.*nvidia.*amd.*\)\n", done.stderr)


def test_a_broken_file_is_named(own_folder: Path) -> None:
    broken = own_folder / "mitigation" / "broken.yaml"
    broken.write_text("broken: {env: [A]}\n")
    for words in (("list",), ("show", "te_det"), ("check", "te_det")):
        done = _run(*words, "--config-dir", str(own_folder))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"detsweep: {broken}: broken.env: must be names with values\n"


@pytest.mark.parametrize("words", [("--help",), ("-h",)])
def test_help_has_examples_and_exit_codes(words: tuple[str, ...]) -> None:
    text = _printed(*words)
    assert "python -m detsweep.mitigations check primus && torchrun train.py\n" in text
    for command in ("list", "show", "variables", "check"):
        assert re.search(rf"^    {command}\b", text, re.MULTILINE)
    assert re.findall(r"^  (\d)  ", text, re.MULTILINE) == ["0", "1", "2"]
    assert max(len(line) for line in text.splitlines()) <= 120


def test_every_command_has_help() -> None:
    assert "--env-only" in _printed("check", "--help")
    assert "--platform" in _printed("list", "--help")
    assert "PREFIX" in _printed("variables", "--help")
    assert "NAME" in _printed("show", "--help")


@pytest.mark.parametrize("words", ["list", "variables", "--help", f"show {' '.join(PRESETS)}"])
def test_a_reader_that_leaves_gets_no_traceback(words: str) -> None:
    command = f"{' '.join(COMMAND)} {words} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 2
    assert done.stdout.endswith("\n0\n")


@pytest.mark.parametrize("words", [["list"], ["show", "megatron"], ["variables"], ["check", "megatron"]], ids=" ".join)
def test_no_command_imports_what_is_slow(words: list[str]) -> None:
    code = (
        f"import sys; sys.argv[1:] = {words!r}\n"
        "from detsweep.mitigations.__main__ import main\n"
        "code = main()\n"
        "print([name for name in ('torch', 'hydra', 'omegaconf', 'pandas', 'numpy') if name in sys.modules])\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=_environment(**MEGATRON), capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.returncode == (1 if words[0] == "check" else 0)
