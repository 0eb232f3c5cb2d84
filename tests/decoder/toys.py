"""Toy models whose laws are exact: a decoder that verifies in fractions, and its law by branching over its coins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from flint import fmpq
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from gpu_decoder import Decoder
from gpu_decoder.coins import coins_of
from gpu_decoder.drafters import Scores, early_exit
from gpu_decoder.drafters import model as model_drafter
from gpu_decoder.drafters.feature_net import FeatureNet, new_net
from gpu_decoder.drafters.model import VOCABULARY
from gpu_decoder.metrics import Meter
from gpu_decoder.models import LanguageModel
from gpu_decoder.processing import Processing, Processors
from gpu_decoder.tree_slots import Block
from gpu_decoder.verify import TreeReader
from ot_spec.arrays import as_fraction, to_numpy
from ot_spec.tree import Commit, DraftTree, LawsByNode, SequenceRule, laws_array
from proofs_check import law_of
from solvers.selectors import k_seq

GRAIN = 2.0**-20


def toy(
    seed: int = 0, vocab: int = 8, layers: int = 1, dtype: torch.dtype = torch.float64, **config: Any
) -> LanguageModel:
    """A random Llama in float64 with a sharp next-token law and no tokenizer."""
    settings = {
        "vocab_size": vocab,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "initializer_range": 0.7,
        "tie_word_embeddings": False,
    } | config
    return random_model(LlamaForCausalLM, LlamaConfig(**settings), seed, dtype, f"toy-{seed}")


def random_model(
    kind: Any, config: Any, seed: int = 0, dtype: torch.dtype = torch.float64, name: str = "toy"
) -> LanguageModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = kind(config).to(dtype).eval().requires_grad_(False)
    return LanguageModel(name, module, None, config.vocab_size, None, frozenset())


def feature_net(target: LanguageModel, vocabulary: Sequence[int], seed: int = 0, **shape: Any) -> FeatureNet:
    """A random feature net with a sharp law, reading the first and last layers of a toy."""
    layers = target.model.config.num_hidden_layers
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = new_net(target, vocabulary, sorted({1, layers}), **shape)
    for weight in net.parameters():
        if weight.ndim == 2:
            weight.data *= 30
    return net.to(target.model.dtype).eval().requires_grad_(False)


def drafting(model: LanguageModel, vocabulary: Sequence[int]) -> LanguageModel:
    """A model that drafts these tokens only."""
    setattr(model.model.config, VOCABULARY, list(vocabulary))
    return model


def bigram(laws: Any) -> LanguageModel:
    """The model whose law after token i is laws[i], a table (V, V); no other token is looked at."""
    table = torch.tensor(np.asarray(laws), dtype=torch.float64)
    vocab = len(table)
    model = toy(0, vocab, hidden_size=4 * vocab, rms_norm_eps=0.0, bos_token_id=None, eos_token_id=None)
    for weight in model.model.parameters():
        weight.zero_()
    network = model.model.model
    network.norm.weight.fill_(1)
    network.embed_tokens.weight.copy_(torch.eye(vocab, 4 * vocab))
    scale = float(network.norm(network.embed_tokens.weight[:1]).max())
    model.model.lm_head.weight[:, :vocab] = torch.log(table).clamp(min=-1e9).T / scale
    return model


def counting(vocab: int) -> LanguageModel:
    """The bigram model that counts: after i comes i + 1, modulo V."""
    return bigram(np.roll(np.eye(vocab), 1, axis=1))


def clock(vocab: int) -> LanguageModel:
    """The model that puts token t modulo V at position t, whatever came before."""
    config = GPT2Config(
        vocab_size=vocab, n_positions=256, n_embd=4 * vocab, n_layer=1, n_head=2, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = random_model(GPT2LMHeadModel, config, name="clock")
    for weight in model.model.parameters():
        weight.zero_()
    network, places = model.model.transformer, torch.arange(256)
    network.ln_f.weight.fill_(1)
    network.wpe.weight[places, (places + 1) % vocab] = 1
    model.model.lm_head.weight[:, :vocab] = torch.eye(vocab)
    return model


class Scripted:
    """A drafter that proposes one token after each text: `propose(ids)`."""

    name = "scripted"

    def __init__(self, propose: Callable[[list[int]], int], vocab: int):
        self.propose, self.vocab = propose, vocab

    def start(self, target: TreeReader, rows: int) -> Any:
        return _Script(self)


class _Script:
    def __init__(self, drafter: Scripted):
        self._drafter = drafter
        self._read: list[list[list[int]]] = []  # the texts that end with the text's last token and each one read

    def begin(self, texts: Sequence[Sequence[int]]) -> list[Scores]:
        self._read = [[list(text)] for text in texts]
        return [self._scores(read) for read in self._read]

    def extend(self, blocks: Sequence[Block]) -> list[Scores]:
        found = []
        for read, block in zip(self._read, blocks, strict=True):
            new = []
            for token, parent in zip(block.tokens, block.parents, strict=True):
                new.append([*read[parent + 1], token])
                read.append(new[-1])
            found.append(self._scores(new))
        return found

    def _scores(self, texts: list[list[int]]) -> Scores:
        logits = torch.full((len(texts), self._drafter.vocab), -torch.inf, dtype=torch.float64)
        for place, text in enumerate(texts):
            logits[place, self._drafter.propose(text)] = 0
        return Scores(logits)

    def end(self) -> None: ...

    def select(self, rows: list[int]) -> None:
        self._read = [self._read[row] for row in rows]


# ---- exact laws


class ExactDecoder(Decoder):
    """Every law in fractions, rounded to multiples of `GRAIN`.

    A token read in a tree and read afresh may differ in the last bits of its law; rounded they are one law, unless they
    differ by more. draft_support: tokens left in a draft law, the most probable ones.
    """

    known: dict[Any, np.ndarray] = {}  # noqa: RUF012, shared by all: the same logits come again in every run

    def __init__(self, *args: Any, draft_support: int | None = None, **options: Any):
        super().__init__(*args, **options)
        self.draft_support = draft_support

    def _law(self, processing: Processing, scores: torch.Tensor) -> np.ndarray:
        narrow = self.draft_support if processing.temperature == self.draft_temperature else None
        if scores.ndim > 1:
            rows = [self._law(processing, row) for row in scores]
            return np.stack(rows) if rows else np.empty((0, scores.shape[-1]), object)
        key = processing, narrow, scores.numpy().tobytes()
        if key not in self.known:
            self.known[key] = rounded(processing.law(scores), narrow)
        return self.known[key]


def rounded(law: Any, support: int | None = None) -> np.ndarray:
    """The law in multiples of GRAIN over their sum, as fractions; its `support` largest entries."""
    weights = np.rint(to_numpy(law) / GRAIN).astype(np.int64)
    if support is not None:
        weights[np.argsort(-weights, kind="stable")[support:]] = 0
    return np.array([fmpq(int(weight), int(weights.sum())) for weight in weights], dtype=object)


class Remembering:
    """A `TreeReader` that asks the model once for what follows one history of calls."""

    known: dict[Any, Any] = {}  # noqa: RUF012

    def __init__(self, model: LanguageModel, rows: int, tap: Sequence[int] = ()):
        self.model, self._rows, self._tap = model, rows, tap
        self._calls: list[Any] = []
        self._key: tuple[Any, ...] = id(model.model), rows, tuple(tap)
        self._reader: Any = None
        self.lengths = [0] * rows

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return functools.partial(self._call, name)

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        self._calls.append((name, args, options))
        told = {key: getattr(value, "name", value) for key, value in options.items()}
        self._key = (*self._key, repr((name, args, told)))
        if self._key not in self.known:
            if self._reader is None:
                self._reader = TreeReader(self.model, self._rows, self._tap)
            for called, given, asked in self._calls:
                answer = getattr(self._reader, called)(*given, **asked)
            self._calls = []
            self.known[self._key] = answer, list(self._reader.lengths)
        answer, lengths = self.known[self._key]
        self.lengths = list(lengths)
        return answer


@contextmanager
def remembering() -> Iterator[None]:
    """Decoders made inside ask models once for what they have been asked before."""
    Remembering.known.clear()
    leave = functools.lru_cache(early_exit.without_last_layers)
    divisors: dict[Any, Any] = {}
    bisected = k_seq._bisected

    def divisor(target: np.ndarray, draft: np.ndarray, k: int) -> Any:
        key = (*target, *draft, k)
        if key not in divisors:
            divisors[key] = bisected(target, draft, k)
        return divisors[key]

    with ExitStack() as stack:
        stack.enter_context(patch("gpu_decoder.decode.TreeReader", Remembering))
        stack.enter_context(patch.object(model_drafter, "TreeReader", Remembering))
        stack.enter_context(patch.object(early_exit, "without_last_layers", lambda lm, n: leave(lm, n)))
        stack.enter_context(patch.object(k_seq, "_bisected", divisor))
        yield


def decoded_law(
    target: LanguageModel, drafter: Any, prompt: Sequence[int], tokens: int, options: dict[str, Any], **asked: Any
) -> dict[tuple[int, ...], Fraction]:
    """The exact law of the tokens that `generate` returns."""

    def run(rng: Any) -> tuple[int, ...]:
        decoder = ExactDecoder(target, drafter, coins=lambda key, step, purpose: rng, **options)
        return tuple(decoder.generate([prompt], tokens, **asked)[0].tokens)

    with remembering():
        return dict(law_of(run))


class _Enough(Exception):
    pass


def step_law(
    target: LanguageModel,
    drafter: Any,
    prompt: Sequence[int],
    options: dict[str, Any],
    *,
    step: int = 0,
    seed: int = 0,
    coins: Callable[[Any, int], Any] = lambda rng, purpose: rng,
    room: int = 64,
    **asked: Any,
) -> tuple[tuple[int, ...], dict[tuple[int, ...], Fraction]]:
    """What `step` steps with fixed coins have committed, and the exact law of what the next one commits.

    coins(rng, purpose): how the step takes its coins from the branching generator.
    """
    before: tuple[int, ...] = ()

    def run(rng: Any) -> tuple[int, ...]:
        nonlocal before
        taken: list[tuple[int, ...]] = []

        def stream(row: int, tokens: list[int]) -> None:
            taken.append(tuple(tokens))
            if len(taken) > step:
                raise _Enough

        decoder = ExactDecoder(
            target, drafter, **options,
            coins=lambda key, at, purpose: coins(rng, purpose) if at == step else coins_of(key, at, purpose),
        )  # fmt: skip
        try:
            decoder.generate([prompt], room, stream=stream, seed=seed, **asked)
        except _Enough:
            before = sum(taken[:-1], ())
            return taken[-1]
        raise AssertionError(f"the text ended before step {step}")

    with remembering():
        law = dict(law_of(run))
    return before, law


# ---- the target alone


class Plain:
    """The target's own law after a prefix, each prefix read afresh and by nothing but the model.

    processors: a function that makes logits processors anew for each text, called along it from `start` on, once a
    position.
    """

    def __init__(
        self,
        target: LanguageModel,
        law: Processing,
        processors: Callable[[], Sequence[Any]] = tuple,
        start: int = 0,
        convert: Callable[[Any], Any] = rounded,
    ):
        self.target, self._law, self._processors, self._start, self._convert = target, law, processors, start, convert
        self._scores: dict[tuple[int, ...], torch.Tensor] = {}
        self._laws: dict[tuple[int, ...], Any] = {}

    def scores(self, text: Sequence[int]) -> torch.Tensor:
        text = tuple(text)
        if text not in self._scores:
            with torch.inference_mode():
                self._scores[text] = self.target.model(torch.tensor([text])).logits[0, -1]
        return self._scores[text]

    def law(self, text: Sequence[int]) -> Any:
        text = tuple(text)
        if text not in self._laws:
            processors, scores = Processors(self._processors()), self.scores(text)
            if processors:
                for end in range(self._start, len(text) + 1):
                    scores = processors(text[:end], self.scores(text[:end]))
            self._laws[text] = self._convert(self._law.law(scores))
        return self._laws[text]

    def continued(
        self, prompt: Sequence[int], masses: dict[tuple[int, ...], Fraction], tokens: int
    ) -> dict[tuple[int, ...], Fraction]:
        """The law of the first `tokens` tokens after the prompt, if those of `masses` come first."""
        done: dict[tuple[int, ...], Fraction] = {}
        while masses:
            longer: dict[tuple[int, ...], Fraction] = {}
            for start, mass in masses.items():
                if len(start) >= tokens:
                    done[start[:tokens]] = done.get(start[:tokens], Fraction(0)) + mass
                    continue
                for token, share in enumerate(self.law((*prompt, *start))):
                    if share:
                        longer[(*start, token)] = longer.get((*start, token), Fraction(0)) + mass * as_fraction(share)
            masses = longer
        return done

    def of(self, prompt: Sequence[int], tokens: int) -> dict[tuple[int, ...], Fraction]:
        """The law of the first `tokens` tokens after the prompt."""
        return self.continued(prompt, {(): Fraction(1)}, tokens)


class Watch(Meter):
    """Compares every law met in decoding one text with the same model reading each prefix afresh.

    off: the largest difference of a probability, of the target and of the draft. Laws of prefixes along one path are
    read in one pass.
    """

    def __init__(
        self,
        target: LanguageModel,
        prompt: Sequence[int],
        law: Processing,
        draft: LanguageModel | None = None,
        draft_law: Processing | None = None,
    ):
        super().__init__(())
        self._readers = [(target, law, 0)] + ([(draft, draft_law or law, 1)] if draft else [])
        self.text, self.off, self.nodes, self.accepted = list(prompt), [0.0, 0.0], 0, 0

    def step(
        self, rule: SequenceRule, tree: DraftTree, target: LawsByNode, draft: LawsByNode | None, commit: Commit
    ) -> None:
        inner = set(tree.parents.tolist())
        ends = [node for node in range(len(tree)) if node not in inner] or [-1]
        for model, processing, which in self._readers:
            found = laws_array(target if which == 0 else draft)
            for end in ends:
                path = [-1, *tree.path(end).tolist()]
                with torch.inference_mode():
                    ids = torch.tensor([[*self.text, *tree.prefix(end)]])
                    scores = model.model(ids).logits[0, -len(path) :]
                fresh = processing.law(scores)
                for node, law in zip(path, fresh, strict=True):
                    if which == 0 or node in inner:
                        self.off[which] = max(
                            self.off[which], float(np.abs(law - to_numpy(found[node + 1 : node + 2])[0]).max())
                        )
        self.text += commit.tokens.tolist()
        self.nodes += len(tree)
        self.accepted += commit.accepted
