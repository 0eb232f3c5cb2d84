"""The house itself: the command and its exits, imports that a linter cannot see, what the wheel ships."""

from __future__ import annotations

import ast
import doctest
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from fractions import Fraction
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from hatchling.builders.wheel import WheelBuilder

from ot_spec import cli, errors

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = ("ot_spec", "solvers", "proofs_check", "gpu_decoder")

# A room of its own for the shell to find: the exits must not depend on what the real rooms do.
ROOM = '''
import errno
import sys
from pathlib import Path
from typing import Annotated

import typer

from ot_spec.cli import CheckFailed, emit_json
from ot_spec.errors import LawError, SolverError


def check(
    fault: Annotated[str, typer.Argument(help="What goes wrong.")] = "none",
    number: Annotated[int, typer.Option("--number")] = 0,
):
    """Fails in the way it is asked to.

    \\b
    {"rows": [int]}  the object on standard output
    """
    if fault == "law":
        raise LawError("law: row 3 sums to 0.9, off by 0.1")
    if fault == "check":
        raise CheckFailed("1 of 7 audits failed")
    if fault == "solver":
        raise SolverError("HiGHS: time limit")
    if fault == "file":
        Path("missing.parquet").read_bytes()
    if fault == "folder":
        Path(".").read_bytes()
    if fault == "extra":
        import z3.nothing
    if fault == "module":
        import no_such_module
    if fault == "bug":
        raise ZeroDivisionError("a fault of ours")
    if fault == "interrupt":
        raise KeyboardInterrupt
    if fault == "closed":
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")
    emit_json({"number": number})


def other():
    """Is never called."""
'''


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys):
    """Runs ``ot-spec`` in this process on the room above; returns (status, output, errors)."""
    package = tmp_path / "room_of_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "checks.py").write_text(ROOM)
    (package / "broken.py").write_text('raise RuntimeError("imported")\n\n\ndef broken():\n    """Breaks."""\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    entries = {
        name: metadata.EntryPoint(name, f"room_of_test.{value}", cli.GROUP)
        for name, value in {"check": "checks:check", "broken": "broken:broken"}.items()
    }
    monkeypatch.setattr(cli, "_entries", lambda: entries)
    monkeypatch.setitem(sys.modules, "z3", None)

    def run(*argv: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            cli.main(argv)
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    yield run
    for name in [name for name in sys.modules if name.partition(".")[0] == "room_of_test"]:
        del sys.modules[name]


def test_help_lists_every_command_with_its_line_and_imports_none(shell):
    for argv in ([], ["--help"]):
        status, out, err = shell(*argv)
        assert (status, err) == (0, "")
        assert re.search(r"broken +Breaks\.", out)
        assert re.search(r"check +Fails in the way it is asked to\.", out)
        assert "room_of_test" not in sys.modules


def test_one_command_imports_only_its_own_module(shell):
    assert shell("check", "--number", "3") == (0, '{"number": 3}\n', "")
    assert "room_of_test.broken" not in sys.modules


def test_help_of_a_command_keeps_the_schema_as_written(shell):
    status, out, _ = shell("check", "--help")
    assert status == 0
    assert '{"rows": [int]}  the object on standard output' in out


@pytest.mark.parametrize(
    ("argv", "status", "sentence"),
    [
        (["check", "law"], 2, "law: row 3 sums to 0.9, off by 0.1"),
        (["check", "check"], 1, "1 of 7 audits failed"),
        (["check", "solver"], 70, "HiGHS: time limit"),
        (["check", "file"], 2, "cannot use 'missing.parquet': No such file or directory"),
        (["check", "folder"], 2, "cannot use '.': Is a directory"),
        (["check", "extra"], 2, "z3 is not installed; get it with: pip install 'ot-spec[smt]'"),
        (["check", "--number", "x"], 2, "'--number'"),
        (["check", "--nothing"], 2, "--nothing"),
        (["check", "none", "one too many"], 2, "one too many"),
        (["nothing"], 2, "nothing"),
        (["--nothing"], 2, "--nothing"),
    ],
)
def test_an_error_is_one_sentence_on_stderr_and_nothing_on_stdout(shell, argv, status, sentence):
    got, out, err = shell(*argv)
    assert (got, out) == (status, "")
    assert err.startswith("ot-spec: ")
    assert err.count("\n") == 1
    assert sentence in err


@pytest.mark.parametrize(
    ("argv", "where"),
    [
        (["check", "bug"], "ZeroDivisionError: a fault of ours"),
        (["check", "module"], "No module named 'no_such_module'"),
        (["broken"], "RuntimeError: imported"),
    ],
)
def test_a_fault_of_ours_shows_where_and_is_neither_a_failed_check_nor_bad_input(shell, argv, where):
    status, out, err = shell(*argv)
    assert (status, out) == (70, "")
    assert err.startswith("Traceback")
    assert where in err


def test_traceback_on_request_keeps_the_status(shell):
    status, _, err = shell("--traceback", "check", "law")
    assert status == 2
    assert "Traceback" in err
    assert "LawError" in err


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("torch", "torch"),
        ("igraph", "fast"),
        ("distributed", "dask"),
        ("z3", "smt"),
        ("ruff", None),
        ("numpy", None),
    ],
)
def test_the_extra_to_install_is_the_one_that_brings_the_package(package, extra):
    assert cli._extra_with(package) == extra


def test_interrupt_and_closed_pipe_end_quietly(shell, monkeypatch):
    assert shell("check", "interrupt") == (130, "", "")
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    status, out, err = shell("check", "closed")
    assert (status != 0, out, err) == (True, "", "")


def test_version_is_that_of_the_project(shell):
    assert shell("--version") == (0, f"ot-spec {PROJECT['project']['version']}\n", "")


def test_json_holds_what_commands_give(capsys):
    cli.emit_json(
        {
            "scalar": np.float64(0.5),
            "count": np.int64(3),
            "table": np.array([[1.0, np.nan], [-np.inf, 2.0]]),
            "flag": True,
            "fraction": Fraction(1, 3),
            "path": Path("out/table.csv"),
            "text": (None, "µ"),
        }
    )
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {
        "scalar": 0.5,
        "count": 3,
        "table": [[1.0, None], [None, 2.0]],
        "flag": True,
        "fraction": "1/3",
        "path": str(Path("out/table.csv")),
        "text": [None, "µ"],
    }
    with pytest.raises(TypeError, match="set"):
        cli.emit_json({"rows": {1, 2}})


def test_every_error_of_a_caller_is_an_ot_spec_error_and_a_value_error():
    for name in (
        "LawError",
        "ShapeError",
        "CandidateError",
        "SupportError",
        "VocabularyError",
        "OptionError",
    ):
        assert issubclass(getattr(errors, name), errors.OtSpecError)
    assert issubclass(errors.OtSpecError, ValueError)
    assert issubclass(errors.SolverError, RuntimeError)


@pytest.mark.parametrize("entry", metadata.entry_points(group=cli.GROUP), ids=lambda entry: entry.name)
def test_every_offered_command_exists_and_takes_the_common_options(entry, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main([entry.name, "--help"])
    assert exit_.value.code == 0
    out = capsys.readouterr().out
    for option in ("--json", "--seed", "--out"):
        assert option in out, f"{entry.name} has no {option}"
    assert cli._summary(entry.value), f"{entry.name} has no line in the list of commands"


# Refuses heavy packages as if they were not installed.
BLOCK = """
import sys
from importlib.abc import MetaPathFinder

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def python(source: str, blocked: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Runs ``source`` in a fresh interpreter in which ``blocked`` packages are not installed."""
    code = BLOCK.format(blocked=blocked) + textwrap.dedent(source)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300
    )


def test_the_block_blocks():
    assert "No module named 'torch'" in python("import torch", blocked=("torch",)).stderr


def test_the_theory_runs_without_torch():
    done = python(
        """
        from fractions import Fraction
        import numpy as np
        import ot_spec, ot_spec.cli, solvers
        target, draft = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
        law = ot_spec.output_law(solvers.get_selector("k_seq"), target, draft, ot_spec.IID(2))
        np.testing.assert_allclose(law, target, rtol=0, atol=1e-15)
        best = solvers.optimal_acceptance(target, draft, ot_spec.IID(2))
        plan = solvers.solve(ot_spec.MembershipTransport(target, draft, ot_spec.IID(2)))
        assert abs(plan.acceptance - best) < 1e-12
        print("held")
        """,
        blocked=("torch", "transformers", "igraph", "dask", "z3"),
    )
    assert (done.stdout, done.stderr) == ("held\n", "")


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["gap", "--help"]], ids=" ".join)
def test_these_commands_run_without_torch(argv):
    done = python(f"import ot_spec.cli; ot_spec.cli.main({argv!r})", blocked=("torch", "transformers"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_capture_without_torch_says_what_to_install():
    done = python(
        "import ot_spec.cli; ot_spec.cli.main(['capture', '--prompts', 'README.md', '--out', 'out/never'])",
        blocked=("torch", "transformers"),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"ot-spec: (torch|transformers) is not installed; get it with: pip install 'ot-spec\[torch\]'\n",
        done.stderr,
    )


@pytest.mark.parametrize("room", ["ot_spec", "solvers"])
def test_importing_a_theory_room_is_silent_and_imports_no_upper_room(room):
    done = python(
        f"""
        import sys
        import {room}
        upper = {{"torch", "transformers", "gpu_decoder", "proofs_check", "matplotlib", "cvxpy", "dask"}}
        print(sorted(upper & set(sys.modules)))
        """
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_wheel_ships_the_four_rooms_and_nothing_else(tmp_path):
    [path] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
    shipped = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert shipped == set(ROOMS)
    assert {f"{room}/py.typed" for room in ROOMS} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_snippets_of_the_readme_print_what_they_say():
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "README.md", "README.md", 0)
    assert len(examples.examples) >= 10
    told: list[str] = []
    assert doctest.DocTestRunner().run(examples, out=told.append).failed == 0, "".join(told)


def test_every_room_is_a_package_with_types():
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == list(ROOMS)
    for room in ROOMS:
        assert (ROOT / room / "__init__.py").is_file(), room
        assert (ROOT / room / "py.typed").is_file(), room


def test_every_third_party_import_is_a_declared_requirement():
    """Of each room, at any depth of the file: what is imported is declared, the rest would fail elsewhere."""
    import_names = {"python_flint": "flint", "z3_solver": "z3"}
    project = PROJECT["project"]
    extras = [line for name, lines in project["optional-dependencies"].items() if name != "dev" for line in lines]
    declared = set()
    for line in [*project["dependencies"], *extras]:
        name = re.split(r"[^\w.-]", line)[0].replace("-", "_")
        declared.add(import_names.get(name, name))
    declared |= {"distributed", "tokenizers"}  # come with dask[distributed] and transformers
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    modules = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    modules = [node.module or ""]
                else:
                    continue
                foreign = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names) - set(ROOMS)
                assert foreign <= declared, f"{path.relative_to(ROOT)} imports {foreign - declared}"


def test_development_tools_are_pinned_and_libraries_are_floors():
    extras = PROJECT["project"]["optional-dependencies"]
    assert all("==" in line for line in extras["dev"])
    for line in [*PROJECT["project"]["dependencies"], *extras["torch"], *extras["fast"], *extras["dask"]]:
        assert re.fullmatch(r"[\w.-]+(\[\w+\])?>=[\d.]+", line), line


def make(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *argv, *(f"{name}={value}" for name, value in variables.items())],
        capture_output=True, text=True, cwd=ROOT, timeout=60, env=env,
    )  # fmt: skip


def test_make_alone_lists_the_targets():
    done = make()
    listed = re.findall(r"^  make ([\w-]+)", done.stdout, flags=re.MULTILINE)
    assert {"demo", "test", "bench", "gpu-bench", "lint", "notebooks", "deep", "clean"} <= set(listed)


@pytest.mark.parametrize("target", ["demo", "test", "bench", "gpu-bench", "lint", "notebooks", "deep"])
def test_a_target_installs_once_torch_first(target, tmp_path):
    done = make("-n", target, VENV=str(tmp_path / "new"))
    assert done.returncode == 0, done.stderr
    order = [
        done.stdout.index(text) for text in ("install -q --disable-pip-version-check torch==", "-e '.[", "--no-deps")
    ]
    assert order == sorted(order)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / ".installed").touch()
    done = make("-n", target, VENV=str(tmp_path / "old"))
    assert done.returncode == 0, done.stderr
    assert "pip install" not in done.stdout


def test_make_says_when_python_is_missing_or_too_old(tmp_path):
    done = make("install", PYTHON="no-such-python", VENV=str(tmp_path / "v"))
    assert done.returncode != 0
    assert "there is no 'no-such-python'" in done.stderr
    old = tmp_path / "old-python"
    old.write_text('#!/bin/sh\ncase "$1" in -V) echo Python 3.8.1 ;; *) exit 1 ;; esac\n')
    old.chmod(0o755)
    done = make("install", PYTHON=str(old), VENV=str(tmp_path / "v"))
    assert done.returncode != 0
    assert "is Python 3.8.1, but Python 3.11 or newer is needed" in done.stderr
    assert not (tmp_path / "v").exists()
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=").split(".")
    assert f"sys.version_info < ({', '.join(oldest)})" in (ROOT / "Makefile").read_text()


def test_the_run_names_what_did_not_run(tmp_path):
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "test_speed.py").write_text("def test_ratio(): assert False\n")
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_runs(): pass\n"
        "def test_gpu(): pytest.skip('no GPU here')\n"
        "@pytest.mark.xfail(reason='rounding')\n"
        "def test_known(): assert False\n"
    )

    def run(*argv: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:benchmark", *argv]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
        return done.returncode, done.stdout.partition("what did not run, and why")[2]

    for argv in (["-p", "no:xdist"], ["-n", "1"]):
        status, told = run(*argv)
        assert status == 0
        for line in (
            "a benchmark, which runs alone: make bench (1)",
            "no GPU here (1)",
            "known to fail: rounding (1)",
        ):
            assert line in told
        assert "benchmarks/test_speed.py::test_ratio" in told
    status, told = run("-k", "runs")
    assert "not chosen by 'runs' (2)" in told
    status, told = run("-k", "runs", "test_some.py::test_runs")
    assert "nothing: every collected test ran" in told
    status, _ = run("benchmarks")
    assert status == 1
