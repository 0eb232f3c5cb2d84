"""What an audit says: verdicts, the smallest counter-example as a test, and every kind of rule."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction as F
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from ot_spec import IID, HubPair, WithoutReplacement, cli
from ot_spec.errors import LawError, OptionError
from proofs_check import Case, CounterExample, Report, audit
from proofs_check.cases import one_step, prefixes, sequences, shrink
from proofs_check.subjects import FunctionSubject
from proofs_check.tiers import ExactJudge
from solvers import get_selector
from solvers.selectors.rrs import RRS


def fault(report: Report) -> CounterExample:
    """The counter-example of a report that must have one."""
    assert report.counterexample is not None, report
    return report.counterexample


# --- rules ---------------------------------------------------------------------------------------------------------


def drawn(weights, rng):
    """A token by weights of any positive total."""
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def coupled(target, draft, candidates, rng):
    """Right for one candidate."""
    token = int(candidates[0])
    if rng.random() * draft[token] < target[token]:
        return token
    return drawn(np.maximum(target - draft, 0), rng)


def from_target(target, draft, candidates, rng):
    """Accepts like `coupled`, and then forgets the draft."""
    token = int(candidates[0])
    return token if rng.random() * draft[token] < target[token] else drawn(target, rng)


def recursive(target, draft, candidates, rng):
    """Right for independent candidates."""
    residual = target
    for token in candidates:
        if rng.random() * draft[token] < residual[token]:
            return int(token)
        residual = np.maximum(residual - draft, 0)
        residual = residual / residual.sum()
    return drawn(residual, rng)


def mixture(target, draft, candidates, rng):
    """Keeps the candidate half of the time."""
    return int(candidates[0]) if rng.random() < 0.5 else drawn(target, rng)


def half(target, draft):
    return (target + draft) / 2


def chain(targets, drafts, tokens, rng):
    committed = []
    for token, target, draft in zip(tokens, targets, drafts, strict=False):
        committed.append(coupled(target, draft, [token], rng))
        if committed[-1] != token:
            return committed
    return [*committed, drawn(targets[-1], rng)]


def forgetful_chain(targets, drafts, tokens, rng):
    """Takes a refusal for a token that the draft never gives from the next position's laws."""
    committed = []
    for i, (token, draft) in enumerate(zip(tokens, drafts, strict=True)):
        if rng.random() * draft[token] >= targets[i][token]:
            return [*committed, drawn(targets[i], rng)]
        committed.append(int(token))
    return [*committed, drawn(targets[-1], rng)]


def first_path(targets, drafts, tokens, rng):
    """Verifies the first of the drafted sequences only."""
    return chain(targets[0], drafts[0], tokens[0], rng)


def greedy_path(targets, drafts, tokens, rng):
    """Commits the sequence that the target likes best."""
    liked = [np.prod([t[y] for t, y in zip(ts, ys, strict=False)]) for ts, ys in zip(targets, tokens, strict=True)]
    best = int(np.argmax(liked))
    return [*tokens[best].tolist(), drawn(targets[best][-1], rng)] if liked[best] else [drawn(targets[0][0], rng)]


def decoder(target, draft, prompt, length, rng):
    tokens = tuple(prompt)
    while len(tokens) < length:
        token = drawn(np.asarray(draft(tokens)), rng) if len(tokens) + 1 < length else None
        law = target(tokens)
        tokens += (drawn(law, rng) if token is None else coupled(law, draft(tokens), [token], rng),)
    return tokens


def draft_decoder(target, draft, prompt, length, rng):
    tokens = tuple(prompt)
    while len(tokens) < length:
        tokens += (drawn(np.asarray(draft(tokens)), rng),)
    return tokens


# --- verdicts ------------------------------------------------------------------------------------------------------


def test_a_right_rule_is_lossless_and_a_wrong_one_is_named_with_its_law():
    report = audit(coupled, k=1)
    assert (report.verdict, report.tier, report.cases, report.passed) == ("lossless", "exact", 60, True)
    assert report.acceptance is not None and report.acceptance[0] == pytest.approx(float(report.acceptance[1]))
    report = audit(from_target, k=1)
    found = fault(report)
    assert report.verdict == "biased" and not report.passed
    assert found.law is not None and found.expected is not None and found.tv is not None
    assert found.tv == report.tv == found.law.tv(found.expected) > 0
    assert sum(found.law.values()) == 1
    assert found.case.vocab == 2, "a bias that two tokens show"


def test_the_counter_example_cannot_be_made_smaller():
    case = fault(audit(from_target, k=1)).case
    assert all(audit(from_target, k=1, cases=[other]).passed for other in case.smaller())


def test_rrs_on_distinct_candidates_is_refuted_by_three_tokens():
    report = audit(get_selector("rrs"), k=2, law=WithoutReplacement(2))
    assert fault(report).case == Case((1, 0, 1), (0, 2, 1), k=2)
    assert fault(report).law == {0: F(1, 6), 2: F(5, 6)}


def test_the_sampled_law_is_judged_and_not_the_declared_one():
    assert audit(recursive, k=2, cases=30).verdict == "lossless"

    def distinct(draft, rng):
        kept = np.flatnonzero(draft)
        return rng.choice(len(draft), size=min(2, len(kept)), replace=False, p=draft)

    for sampler in (WithoutReplacement(2), distinct):
        report = audit(recursive, k=2, draft_sampler=sampler)
        assert report.verdict == "biased", sampler
        assert fault(report).case.vocab <= 4
    assert (
        audit(get_selector("rrs_without_replacement"), k=2, law=WithoutReplacement(2), cases=30).verdict == "lossless"
    )


def test_a_lossy_rule_is_held_against_what_it_declares():
    assert audit(mixture, k=1).verdict == "biased"
    report = audit(mixture, k=1, declared=half)
    assert (report.verdict, report.passed) == ("lossy as declared", True)
    report = audit(coupled, k=1, declared=half)
    assert report.verdict == "biased" and "declared law" in fault(report).message
    assert audit(coupled, k=1, declared=lambda target, draft: target).verdict == "lossless"


def test_acceptance_above_the_optimum_is_a_fault():
    """Lossless, but only since the candidates come from the target and not, as said, from the draft."""

    def keep(target, draft, candidates, rng):
        return int(candidates[0])

    def cheat(draft, rng):
        return [rng.choice(2, p=[0.5, 0.5])]

    judge = ExactJudge(FunctionSubject(keep, 1, 4, IID(1), cheat, "float64"))
    found = judge(Case((1, 1), (3, 1), k=1))
    assert found is not None and found.tv == 0
    assert found.message.startswith("acceptance 1 is above the optimum 0.75")
    assert judge(Case((1, 1), (1, 1), k=1)) is None


@pytest.mark.parametrize("arrays", ["float64", "float32", "fractions"])
def test_rules_on_numpy_arrays(arrays):
    kinds = {"float64": np.float64, "float32": np.float32, "fractions": object}

    def checked(target, draft, candidates, rng):
        assert target.dtype == draft.dtype == kinds[arrays] and candidates.dtype == np.int64
        token = int(candidates[0])
        if rng.random() * draft[token] < target[token]:
            return token
        residual = np.array([max(t - d, 0) for t, d in zip(target, draft, strict=True)])
        return rng.choice(len(residual), p=residual / residual.sum())

    assert audit(checked, k=1, cases=30, arrays=arrays).verdict == "lossless"
    assert audit(from_target, k=1, cases=30, arrays=arrays).verdict == "biased"


@pytest.mark.parametrize("arrays", ["torch64", "torch32"])
def test_rules_on_torch_tensors(arrays):
    def right(target, draft, candidates):
        assert target.dtype == (torch.float64 if arrays == "torch64" else torch.float32)
        token = candidates[0]
        if torch.rand(()) * draft[token] < target[token]:
            return token
        return torch.multinomial((target - draft).clamp(min=0), 1)[0]

    def wrong(target, draft, candidates):
        token = candidates[0]
        return token if torch.rand(()) * draft[token] < target[token] else torch.multinomial(target, 1)[0]

    assert audit(right, k=1, cases=30, arrays=arrays).verdict == "lossless"
    assert audit(wrong, k=1, cases=30, arrays=arrays).verdict == "biased"


# --- faults that are no law ----------------------------------------------------------------------------------------


def changes_target(target, draft, candidates, rng):
    target[0] = 1
    return 0


def changes_candidates(target, draft, candidates, rng):
    candidates.sort()
    return drawn(target, rng)


def past_the_end(target, draft, candidates, rng):
    return len(target)


def raises(target, draft, candidates, rng):
    raise KeyError("no such token")


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (changes_target, "changes its inputs"),
        (changes_candidates, "changes its inputs"),
        (past_the_end, "which is not one of 2 tokens"),
        (lambda target, draft, candidates, rng: -1, "returns -1"),
        (lambda target, draft, candidates, rng: 0.5, "returns 0.5"),
        (lambda target, draft, candidates, rng: None, "returns None"),
        (raises, "the rule raises KeyError: 'no such token'"),
    ],
)
def test_what_no_law_can_excuse_is_a_finding(rule, words):
    report = audit(rule, k=2)
    assert report.verdict == "biased" and words in fault(report).message
    assert fault(report).law is None


@pytest.mark.parametrize(
    ("rule", "kind", "words"),
    [
        (lambda targets, drafts, tokens, rng: [], "chain", "commits 0 tokens of"),
        (lambda targets, drafts, tokens, rng: [0] * 4, "chain", "commits 4 tokens of"),
        (lambda targets, drafts, tokens, rng: [-1, 0], "chain", "commits -1"),
        (lambda targets, drafts, tokens, rng: tokens.fill(0) or [0], "tree", "changes its inputs"),
        (lambda target, draft, prompt, length, rng: [0] * (length + 1), "decoder", "tokens where"),
        (lambda target, draft, prompt, length, rng: [9] * length, "decoder", "returns 9, which is not one"),
    ],
)
def test_sequences_that_cannot_be(rule, kind, words):
    report = audit(rule, kind=kind)
    assert report.verdict == "biased" and words in fault(report).message


def test_selectors_whose_two_readings_differ():
    class Stubborn(RRS):
        def select(self, target, draft, candidates, coins):
            return super().select(target, draft, candidates, coins)._replace(token=candidates[..., 0])

    report = audit(Stubborn(), k=2)
    assert report.verdict == "biased" and "conditional and select disagree" in fault(report).message


# --- kinds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2])
def test_chains(length):
    assert audit(chain, kind="chain", length=length).verdict == "lossless"
    report = audit(forgetful_chain, kind="chain", length=length)
    assert report.verdict == "biased" and fault(report).case.vocab == 2


def test_padding_with_minus_one_is_no_token():
    def padded(targets, drafts, tokens, rng):
        committed = chain(targets, drafts, tokens, rng)
        return np.array(committed + [-1] * (len(tokens) + 1 - len(committed)))

    assert audit(padded, kind="chain", cases=6).verdict == "lossless"


def test_trees():
    assert audit(first_path, kind="tree", k=2, length=1).verdict == "lossless"
    report = audit(greedy_path, kind="tree", k=2, length=1)
    assert report.verdict == "biased"
    assert audit(greedy_path, kind="tree", k=2, length=1, cases=[fault(report).case]).verdict == "biased"


def test_trees_whose_sequences_are_drawn_otherwise():
    def twice(drafts, length, rng):
        path: tuple[int, ...] = ()
        while len(path) < length:
            path += (drawn(np.asarray(drafts[path]), rng),)
        return [path, path]

    assert audit(first_path, kind="tree", k=2, length=1, draft_sampler=twice).verdict == "lossless"

    def first_token(drafts, length, rng):
        return [(0,) * length] * 2

    assert audit(first_path, kind="tree", k=2, length=1, draft_sampler=first_token).verdict == "biased"


def test_decoders():
    assert audit(decoder, kind="decoder", length=2).verdict == "lossless"
    report = audit(draft_decoder, kind="decoder", length=2)
    assert report.verdict == "biased" and fault(report).case.vocab == 2


# --- the report ----------------------------------------------------------------------------------------------------


def pasted(report, tmp_path, *rules):
    """Runs the printed test in a file of its own, the rules beside it."""
    source = report.as_test()
    file = tmp_path / "test_pasted.py"
    file.write_text(source + "\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )


RULES = """
import numpy as np


def kept(target, draft, candidates, rng):
    return int(candidates[0])


def half(target, draft):
    return (target + draft) / 2
"""


def test_the_counter_example_is_a_test_that_fails(tmp_path, monkeypatch):
    (tmp_path / "engine.py").write_text(RULES)
    monkeypatch.syspath_prepend(tmp_path)
    import engine  # pyright: ignore[reportMissingImports]

    report = audit(engine.kept, k=2, declared=engine.half, law=WithoutReplacement(2), seed=4)
    assert "from engine import kept" in report.as_test() and report.as_test() in str(report)
    result = pasted(report, tmp_path)
    assert result.returncode == 1 and "AssertionError" in result.stdout, result.stdout
    (tmp_path / "engine.py").write_text(
        RULES.replace("int(candidates[0])", "int(rng.choice(len(target), p=half(target, draft)))")
    )
    assert pasted(report, tmp_path).returncode == 0
    sys.modules.pop("engine")


def test_the_test_for_a_selector_makes_one(tmp_path):
    report = audit(get_selector("rrs"), k=2, law=WithoutReplacement(2))
    result = pasted(report, tmp_path)
    assert result.returncode == 1 and "audit(RRS()" in result.stdout and "AssertionError" in result.stdout


def test_a_report_reads_well():
    text = str(audit(from_target, k=1))
    for words in (
        "from_target: biased (function, exact tier",
        "smallest counter-example:",
        "should be",
        "<--",
        "def test_",
    ):
        assert words in text
    text = str(audit(coupled, k=1))
    assert "lossless" in text and "the optimum is" in text


def test_a_report_as_plain_values():
    report = audit(from_target, k=1)
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["verdict"] == "biased"
    assert Case(**{n: plain["counterexample"][n] for n in ("target", "draft", "k", "length")}) == fault(report).case
    assert plain["counterexample"]["test"] == report.as_test()
    assert json.loads(json.dumps(audit(coupled, k=1).as_dict()))["counterexample"] is None


def test_junit_holds_any_message():
    def noisy(target, draft, candidates, rng):
        raise ValueError("\x1b[31m<bad> & \x00 \ud800")

    suite = ElementTree.fromstring(audit(noisy, k=1).as_junit().encode())
    assert (suite.tag, suite.get("tests"), suite.get("failures")) == ("testsuite", "1", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None and "<bad> &" in (failure.text or "")
    suite = ElementTree.fromstring(audit(coupled, k=1).as_junit().encode())
    assert suite.get("failures") == "0" and suite.find("testcase/failure") is None


# --- options and cases ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tier": "quick"}, "tier must be one of"),
        ({"kind": "engine"}, "kind must be one of"),
        ({"arrays": "list"}, "arrays must be one of"),
        ({"cases": []}, "there is no case"),
        ({"kind": "chain", "batch": True}, "batch is for functions"),
        ({"tier": "edge"}, "say how many with coins="),
        ({"tier": "stratified"}, "say how many with coins="),
        ({"tier": "statistical", "tv": 0}, "tv must lie in"),
        ({"tier": "statistical", "error": 1}, "error must lie in"),
        ({"tier": "statistical", "draws": 0}, "draws must be at least 1"),
    ],
)
def test_options_that_do_not_fit(options, words):
    with pytest.raises(OptionError, match=words):
        audit(coupled, **{"k": 1, **options})


def test_cases_are_small_whole_weights():
    with pytest.raises(LawError, match="negative or all zero"):
        Case((0, 0), (1, 1))
    with pytest.raises(OptionError, match="1 rows for 3 prefixes"):
        Case(((1, 1),), ((1, 1),), length=1)
    rows: list = [np.array([1, 3]), [2, 2]]
    case = Case(*rows, k=2)
    assert case.laws()[0].tolist() == [F(1, 4), F(3, 4)] and case.size() == (2, 0, 2, 8)
    assert prefixes(2, 1) == [(), (0,), (1,)]


@pytest.mark.parametrize("seed", [0, 1])
def test_cases_come_in_order_and_show_residuals_of_two_tokens(seed):
    cases = one_step(2, 4, 60, seed)
    assert cases == sorted(cases, key=Case.size) and len(cases) == 60
    over = [sum(t > d for t, d in zip(*case.laws(), strict=True)) for case in cases]
    assert max(over) >= 2 and {case.vocab for case in cases} == {2, 3, 4}
    tables = sequences(1, 2, 3, 12, seed)
    assert {len(case.target) for case in tables} == {len(prefixes(v, 2)) for v in {c.vocab for c in tables}}


def test_shrinking_ends_at_a_case_none_of_whose_neighbours_fails():
    def fails(case):
        return case.target[-1] * 2 > sum(case.target) and case.vocab > 2

    case = shrink(Case((5, 3, 2, 17), (1, 2, 3, 4), k=3), fails)
    assert case == Case((0, 0, 1), (1, 0, 0), k=1)
    assert shrink(Case((1, 2), (1, 2)), lambda case: False) == Case((1, 2), (1, 2))
    assert shrink(Case((9, 9), (9, 9)), lambda case: True, attempts=0) == Case((9, 9), (9, 9))


def test_shrinking_keeps_the_k_of_a_law_that_has_only_one():
    report = audit(get_selector("rrs"), k=2, law=HubPair())
    assert report.verdict == "biased" and fault(report).case.k == 2


def test_progress():
    seen = []
    audit(coupled, k=1, cases=5, progress=lambda done, many: seen.append((done, many)))
    assert seen == [(i, 5) for i in range(1, 6)]


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys):
    (tmp_path / "engine_of_test.py").write_text(RULES + "\nCONSTANT = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*argv):
        with pytest.raises(SystemExit) as exit_:
            cli.main(["audit", *argv])
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    yield run
    sys.modules.pop("engine_of_test", None)


def test_the_command_finds_a_module_in_the_current_folder(shell, tmp_path):
    status, out, err = shell("engine_of_test:kept", "--k", "1", "--json", "--out", "found", "--junit", "j.xml")
    plain = json.loads(out)
    assert (status, plain["verdict"], plain["counterexample"]["target"]) == (1, "biased", [1, 0])
    assert err.startswith("ot-spec: engine_of_test:kept is biased: the output law is 1 away") and err.count("\n") == 1
    names = sorted(file.name for file in (tmp_path / "found").iterdir())
    assert names == ["junit.xml", "report.json", "report.txt", "test_counterexample.py"]
    assert ElementTree.parse(tmp_path / "j.xml").getroot().get("failures") == "1"
    assert json.loads((tmp_path / "found" / "report.json").read_text()) == plain
    compile((tmp_path / "found" / "test_counterexample.py").read_text(), "test", "exec")


def test_the_command_passes_what_is_right(shell):
    assert shell("engine_of_test:kept", "--k", "1", "--declared", "engine_of_test:half")[0] == 1
    status, out, err = shell("solvers.selectors.rrs:RRS", "--cases", "10")
    assert (status, err) == (0, "") and "RRS: lossless" in out
    assert shell("solvers.selectors.rrs:RRS", "--law", "without_replacement")[0] == 1
    status, out, _ = shell("solvers.selectors.rrs:RRS", "--tier", "statistical", "--tv", "0.1", "--json")
    assert status == 0 and "power 0.99" in json.loads(out)["notes"][0]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["no_such_module:kept"], "there is no module no_such_module"),
        (["engine_of_test:missing"], "module engine_of_test has no missing"),
        (["engine_of_test:CONSTANT"], "engine_of_test:CONSTANT cannot be called"),
        (["engine_of_test"], "write module:function"),
        (["engine_of_test:kept", "--tier", "quick"], "tier must be one of"),
        (["engine_of_test:kept", "--law", "beam"], "--law must be one of"),
        (["engine_of_test:kept", "--law", "hub_pair", "--k", "3"], "hub_pair gives two candidates"),
        (["engine_of_test:kept", "--declared", "engine_of_test:no"], "declared: module engine_of_test has no no"),
    ],
)
def test_bad_input_is_one_sentence(shell, argv, words):
    status, out, err = shell(*argv)
    assert (status, out) == (2, "") and words in err and err.count("\n") == 1
