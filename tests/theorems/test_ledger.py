"""The ledger: every entry keeps its promise, a status that gets worse fails, and what the command says."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sympy as sp

from ot_spec import cli
from proofs_check import theorems_command
from proofs_check.theorems import algebra, instances, ledger, smt
from proofs_check.theorems.theorem import Refuted, Status, Theorem, Undecided, Verdict, counter_example, worse

ALL = ledger.theorems()
REPOSITORY = Path(__file__).parents[2]

AT_LEAST_PROVED = {
    "speculative_sampling.1": "1 − TV",
    "speculative_sampling.2": "the output has law t",
    "speculative_sampling.3": "k = 1",
    "spectr.1": "three tokens, k = 2",
    "spectr.2": "every ρ ≥ ρ*",
    "spectr.4": "the right side does not fall",
    "spectr.5": "Σ_y min(ρ* d(y), t(y))",
    "spectr.6": "1 − 1/e",
    "spectr.7": "(1 − (1 − 1/k)^k) α*",
    "spectr.8": "min(t(y), P(y ∈ X))",
    "spectr.9": "r_2 = 8/9",
    "spectr.10": "two tokens",
    "optimal_cut.1": "Weak duality",
    "optimal_cut.3": "prefix",
    "optimal_cut.4": "Two tokens",
    "optimal_cut.6": "Top then sample",
    "canonical.1": "Canonical form",
    "recursive_rejection.2": "V = 3, k = 2",
    "recursive_rejection.4": "without replacement",
    "spechub.4": "top-then-sample at k = 2",
    "block.2": "V = 3, L = 2",
    "rejections.1": "Σ_{n ≤ N} E[TV(t_n, d_n)]",
    "gaussian.1": "2Φ(−|δ|/2)",
    "without_replacement.2": "Exchange inequality",
    "without_replacement.3": "Prefixes suffice",
    "without_replacement.4": "≥ α* of k i.i.d. drafts",
    "speed_of_light.3": "ln P/μ + C + 1",
    "speed_of_light.4": "ln(1 + μ(P − C))/μ + C",
    "speed_of_light.5": "The published bound",
}
AT_LEAST_CERTIFIED = {
    "flows.3": "cumulative maxima",
    "flows.5": "Lifting, first direction",
    "flows.6": "Lifting, second direction",
    "flows.7": "Levels are uniform",
    "flows.9": "i.i.d. and without replacement",
    "gumbel.2": "α ≥",
    "traversal.3": "is block verification",
    "speed_of_light.7": "Exit-node entropy",
}


@pytest.mark.parametrize("theorem", ALL, ids=lambda theorem: theorem.id)
def test_an_entry_keeps_its_promise(theorem: Theorem):
    outcome = ledger.run_one(theorem)
    assert outcome.passed, outcome.sentence()
    assert (outcome.example is not None) == (outcome.status == "refuted")


@pytest.mark.parametrize("theorem", ALL, ids=lambda theorem: theorem.id)
def test_no_falsifier_breaks_its_statement(theorem: Theorem):
    theorem.falsifier()


def test_entries_are_numbered_by_paper_and_complete():
    assert [theorem.id for theorem in ALL] == [
        f"{paper}.{number}"
        for paper in ledger.PAPERS
        for number in range(1, sum(t.id.startswith(f"{paper}.") for t in ALL) + 1)
    ]
    for theorem in ALL:
        assert theorem.statement.endswith((".", ".)")), theorem.id
        assert theorem.source, theorem.id
        assert ledger.title(theorem.id.partition(".")[0]), theorem.id
    statements = [theorem.statement for theorem in ALL]
    assert len(set(statements)) == len(statements)


def test_the_ledger_is_as_large_as_the_field_asks():
    promised = [theorem.promised for theorem in ALL]
    assert len(ALL) >= 45
    assert promised.count("refuted") >= 5
    assert promised.count("proved") >= 25
    by_id = {theorem.id: theorem for theorem in ALL}
    needed: dict[Status, dict[str, str]] = {"proved": AT_LEAST_PROVED, "certified": AT_LEAST_CERTIFIED}
    for status, asked in needed.items():
        for name, words in asked.items():
            assert not worse(by_id[name].promised, status), name
            assert words.lower() in by_id[name].statement.lower(), name


def test_every_module_of_the_folder_is_a_paper_or_a_tool():
    names = {path.stem for path in (REPOSITORY / "proofs_check" / "theorems").glob("*.py")} - {"__init__"}
    assert names == {*ledger.PAPERS, "algebra", "instances", "ledger", "smt", "theorem"}


def test_only_proofs_may_be_slow():
    for theorem in ALL:
        assert theorem.promised == "proved" or not theorem.slow, theorem.id
        assert theorem.allowed(full=True) == theorem.promised, theorem.id


def entry(
    verdict: Verdict | None = None,
    promised: Status = "proved",
    fails: Exception | None = None,
    falsifier: Callable[[], None] = lambda: None,
    slow: bool = False,
) -> Theorem:
    def check(full: bool) -> Verdict:
        if fails is not None:
            raise fails
        assert verdict is not None
        return verdict

    return Theorem("toy.1", "All is well.", "this test", promised, check, falsifier, slow)


@pytest.mark.parametrize(
    ("came", "promised", "passes"),
    [
        ("proved", "proved", True),
        ("certified", "proved", False),
        ("tested", "proved", False),
        ("tested", "certified", False),
        ("certified", "certified", True),
        ("proved", "certified", True),
        ("proved", "tested", True),
        ("refuted", "proved", False),
        ("refuted", "tested", False),
        ("refuted", "refuted", True),
        ("proved", "refuted", False),
        ("tested", "refuted", False),
    ],
)
def test_a_status_that_gets_worse_fails(came, promised, passes):
    assert worse(came, promised) != passes
    outcome = ledger.run_one(entry(Verdict(came, "here", "an example"), promised))
    assert outcome.passed == passes
    if not passes:
        assert outcome.sentence() == f"toy.1 is promised {promised} and came out {came}: an example"


def test_a_counter_example_fails_what_was_to_be_proved():
    outcome = ledger.run_one(entry(fails=Refuted("t = (0, 1)")))
    assert (outcome.status, outcome.passed) == ("refuted", False)
    assert outcome.sentence() == "toy.1 is promised proved and came out refuted: t = (0, 1)"


def test_giving_up_is_no_verdict_and_fails():
    outcome = ledger.run_one(entry(fails=Undecided("z3 gave up"), promised="tested"))
    assert (outcome.status, outcome.passed) == (None, False)
    assert outcome.sentence() == "toy.1 is promised tested and came to no verdict: z3 gave up"


def test_a_fault_of_a_check_passes_through():
    for fault in (ZeroDivisionError(), AssertionError("a plain one"), ModuleNotFoundError("no x", name="x")):
        with pytest.raises(type(fault)):
            ledger.run_one(entry(fails=fault))


def test_a_slow_proof_may_be_certified_in_the_fast_form_only():
    slow = entry(Verdict("certified", "here"), slow=True)
    assert ledger.run_one(slow).passed
    assert not ledger.run_one(slow, full=True).passed
    assert not ledger.run_one(entry(Verdict("tested", "here"), slow=True)).passed
    assert not ledger.run_one(entry(Verdict("tested", "here"), promised="certified", slow=True)).passed


def test_a_falsifier_that_finds_something_fails_the_entry():
    def finds():
        raise AssertionError("t = (1,)")

    broken = entry(Verdict("proved", "here"), falsifier=finds)
    assert ledger.run_one(broken).passed
    outcome = ledger.run_one(broken, falsify=True)
    assert not outcome.passed
    assert outcome.sentence() == "toy.1: its falsifier fails: t = (1,)"


def test_a_claim_that_its_example_does_not_break_is_not_refuted():
    assert counter_example(True, "one", "t = (1,)") == Verdict("refuted", "one", "t = (1,)")
    assert worse(counter_example(False, "one", "t = (1,)").status, "refuted")


# the tools


def test_what_sympy_does_not_see_is_not_shown():
    x, y = sp.symbols("x y", positive=True)
    n = sp.Symbol("n", integer=True, nonnegative=True)
    algebra.sums_to(2 * n + 1, n**2, n)
    for false in (
        lambda: algebra.equal(x * y, x + y),
        lambda: algebra.nonnegative(x - y),
        lambda: algebra.nonpositive(x),
        lambda: algebra.positive(sp.Symbol("z", nonnegative=True)),
        lambda: algebra.sums_to(2 * n, n**2, n),
        lambda: algebra.sums_to(2 * n + 1, n**2 + 1, n),
        lambda: algebra.least(x, y),
    ):
        with pytest.raises(Refuted):
            false()


def test_the_lemmas_on_powers():
    algebra.powers_are_monotone()
    algebra.powers_lie_above_their_tangent()
    algebra.powers_are_convex()


def test_z3_gives_a_model_or_gives_up():
    z3 = smt.solver()
    x, y = z3.Reals("x y")
    smt.prove(x * x < 0)
    with pytest.raises(Refuted, match=r"x = -?\d"):
        smt.prove([x * x < 0, x * x > 2])
    with pytest.raises(Undecided, match="gave up"):
        smt.prove(x ** (y + 1) == 2 - x**y, [x > 1, y > 2], timeout=0.1)
    assert z3.simplify(smt.minimum(z3.RealVal(1), z3.RealVal(2))) == 1
    assert z3.simplify(smt.maximum(z3.RealVal(1), z3.RealVal(2))) == 2
    assert z3.simplify(smt.positive_part(z3.RealVal(-1))) == 0


def test_nothing_is_proved_from_assumptions_that_contradict_each_other():
    x = smt.solver().Real("x")
    with pytest.raises(Undecided, match="no model of the assumptions"):
        smt.prove(x * x > 2, [x > 1, x < 0])
    with pytest.raises(ValueError, match="nothing to prove"):
        smt.prove([], [x > 1])


def test_a_z3_that_does_not_load_is_a_missing_one(tmp_path, monkeypatch):
    (tmp_path / "z3.py").write_text("raise ImportError('libz3.so: no such file')\n")
    monkeypatch.delitem(sys.modules, "z3", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = ledger.run_one(ledger.theorems(["spectr.1"])[0])
    assert outcome.status is None
    assert not outcome.passed
    assert "libz3.so" in outcome.scope
    assert "pip install" in outcome.scope


def test_instances_are_laws_that_follow_the_seed():
    def drawn(seed):
        with instances.seeded(seed):
            return [str(instance) for instance in instances.pairs(160, 5, (2, 3), room=100)]

    assert drawn(0) == drawn(0) != drawn(1)
    found = list(instances.pairs(160, 5, (2, 3), room=100))
    assert len(found) == 160
    for target, draft, k in found:
        assert target.sum() == draft.sum() == 1
        assert min(target) >= 0
        assert min(draft) >= 0
        assert len(target) ** k <= 100
    assert {(len(i.target), i.k) for i in found} >= {(5, 2), (4, 3)}
    for row in instances.uneven(20, 4, k=3):
        assert len(row) == 3
        assert all(instance.draft.sum() == 1 for instance in row)


# the command


@pytest.fixture
def run(capsys):
    def call(*argv: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            cli.main(["theorems", *argv])
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return call


def test_the_command_tells_id_statement_status_and_scope(run):
    status, out, err = run("--only", "speculative_sampling")
    assert (status, err) == (0, "")
    for word in ("speculative_sampling.1", "proved", "refuted", "symbolically", "Counter-example", "6 theorems"):
        assert word in out, word


def test_the_command_as_json_and_files(run, tmp_path):
    status, out, _ = run("--only", "speculative_sampling", "--only", "spectr.13", "--json", "--out", str(tmp_path))
    assert status == 0
    rows = json.loads(out)["theorems"]
    assert [row["id"] for row in rows] == [f"speculative_sampling.{n}" for n in range(1, 7)] + ["spectr.13"]
    for row in rows:
        assert set(row) == {
            "id", "statement", "source", "status", "scope", "seconds", "promised", "example", "passed"
        }  # fmt: skip
        assert row["status"] == row["promised"]
        assert row["passed"] is True
        assert row["seconds"] >= 0
    assert json.loads((tmp_path / "theorems.json").read_text()) == {"theorems": rows}
    told = (tmp_path / "theorems.md").read_text()
    assert "## spectr.13: refuted" in told
    assert "Counter-example: k = 2, t = (5/16, 11/16)" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theorems.json", "theorems.md"]


def test_the_command_fails_when_an_entry_gets_worse(run, monkeypatch):
    worsened = [entry(Verdict("certified", "3 instances")), replace(entry(Verdict("proved", "all")), id="toy.2")]
    monkeypatch.setattr(ledger, "theorems", lambda only=(): worsened)
    monkeypatch.setattr(theorems_command, "theorems", lambda only=(): worsened)
    monkeypatch.setattr(theorems_command, "title", lambda paper: "Toys")
    status, out, err = run()
    assert status == 1
    assert "not proved" in out
    last = err.rstrip("\n").rpartition("\n")[2]
    assert last == (
        "ot-spec: 1 of 2 theorems are not what the ledger promises: "
        "toy.1 is promised proved and came out certified: 3 instances"
    )
    status, out, _ = run("--json")
    assert status == 1
    assert [row["passed"] for row in json.loads(out)["theorems"]] == [False, True]


def test_without_z3_the_others_are_shown_and_the_sentence_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "z3", None)
    status, out, err = run("--only", "spectr.1", "--only", "spectr.6", "--only", "spectr.9")
    assert status == 1
    assert "no verdict" in out
    assert "1 proved" in out
    last = err.rstrip("\n").rpartition("\n")[2]
    assert last.startswith("ot-spec: 2 of 3 theorems")
    assert last.endswith(
        "no verdict on spectr.1, spectr.9: z3 is not installed; get it with: pip install 'ot-spec[smt]'"
    )


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--only", "spektr"], "no paper 'spektr' in the ledger; there are speculative_sampling, spectr"),
        (["--only", "spectr.0"], "no theorem 'spectr.0' in the ledger; there are spectr.1, spectr.2, "),
        (["--seed", "-1"], "seed must be at least 0, got -1"),
    ],
)
def test_bad_input_is_one_sentence(run, argv, sentence):
    status, out, err = run(*argv)
    assert (status, out) == (2, "")
    assert err.startswith(f"ot-spec: {sentence}")
    assert err.count("\n") == 1


def test_the_full_form_runs_the_falsifiers(run, monkeypatch):
    called = []
    toys = [entry(Verdict("proved", "all"), falsifier=lambda: called.append("toy"))]
    monkeypatch.setattr(ledger, "theorems", lambda only=(): toys)
    monkeypatch.setattr(theorems_command, "theorems", lambda only=(): toys)
    monkeypatch.setattr(theorems_command, "title", lambda paper: "Toys")
    assert run("--fast")[0] == 0
    assert called == []
    assert run("--full")[0] == 0
    assert called == ["toy"]
