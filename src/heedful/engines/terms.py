"""A glossary at work in an engine: one way after another, until every term is there.

First the model translates as ever, or reads the terms inline if it has learned that; what has its terms then
is done, and as quick as without a glossary. The rest is searched again for translations that contain them
(decoding/constrained.py), and what still lacks one is put together around its terms (text/protection.py).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from heedful.corpora.filters import clean_sentence
from heedful.decoding.config import SearchConfig
from heedful.decoding.constraints import Constraint, Joined
from heedful.decoding.hypothesis import Hypothesis, new_hypothesis
from heedful.engines.base import Translation
from heedful.errors import HeedfulError
from heedful.text.glossary import Glossary, Term, missing_terms
from heedful.text.protection import translate_protected
from heedful.text.spans import in_one_word
from heedful.text.spelling import SPACE
from heedful.text.tokenizer import Tokenizer
from heedful.text.translated import Translated, drive

if TYPE_CHECKING:
    from heedful.engines.segmented import Job, SegmentedEngine

_LEADS = ("(", "a", "1")
"""Of different kinds: after one of them a term is spelled as it is without a space before it."""


class Wanted(NamedTuple):
    """A segment as the model reads it, and the terms in it."""

    text: str
    terms: Sequence[Term]


class TermSearch:
    """Searches jobs of an engine so that their translations obey a glossary."""

    def __init__(
        self, engine: "SegmentedEngine", glossary: Glossary, settings: SearchConfig, details: bool
    ) -> None:
        self.engine, self.glossary, self.settings, self.details = engine, glossary, settings, details
        self.inline = _reads_inline(engine, settings)
        self.constrains = settings.method == "beam" and settings.glossary_mode != "split"
        self.target = engine.bundle.tokenizer.target

    def wanted(self, texts: Sequence[str]) -> list[Wanted]:
        """The terms of each segment."""
        bundle = self.engine.bundle
        cleaned = [clean_sentence(bundle.source_parts(text)[0], bundle.config.normalize) for text in texts]
        return [Wanted(text, self.glossary.terms(text)) for text in cleaned]

    def searched(self, jobs: Sequence["Job"], wanted: Sequence[Wanted]) -> list[list[Hypothesis]]:
        """The hypotheses of each job, best first, with its terms if there is any way."""
        read = [self._inline(job, each) for job, each in zip(jobs, wanted, strict=True)]
        found = self._looked_at(jobs, read, self.engine._searched(read, self.settings, self.details))
        if self.constrains:
            places = self._lacking(found, wanted)
            asked = [read[i]._replace(constraints=self._constraints(wanted[i].terms)) for i in places]
            again = self.engine._searched(asked, self.settings, self.details) if asked else []
            self._improve(found, wanted, places, self._looked_at([jobs[i] for i in places], asked, again))
        places = [i for i in self._lacking(found, wanted) if not jobs[i].prefix]
        if places:
            split = self._split([jobs[i] for i in places], [wanted[i].text for i in places])
            self._improve(found, wanted, places, split)
        return found

    def missing(self, found: Sequence[Hypothesis], wanted: Wanted) -> list[Term]:
        """Terms that the best hypothesis lacks; none if there is no hypothesis."""
        return missing_terms(self.target.decode(found[0].tokens), wanted.terms) if found else []

    # ---- the ways

    def _inline(self, job: "Job", wanted: Wanted) -> "Job":
        """The job with its terms written into the source, if the model reads that and it is not too long."""
        bundle = self.engine.bundle
        if not (self.inline and wanted.terms):
            return job
        ids = bundle.source_ids(wanted.text, self.settings.language, wanted.terms)
        return job._replace(ids=ids) if len(ids) < bundle.config.longest_source else job

    def _looked_at(
        self, jobs: Sequence["Job"], read: Sequence["Job"], found: Sequence[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """With attention to the source without inline terms, where attention is wanted."""
        return [
            [self.engine._watched(job.ids, each) for each in hypotheses]
            if self.details and job.ids != seen.ids
            else hypotheses
            for job, seen, hypotheses in zip(jobs, read, found, strict=True)
        ]

    def _constraints(self, terms: Sequence[Term]) -> tuple[Constraint, ...]:
        return tuple(spelled(self.target, term.forms) for term in terms)

    def _split(self, jobs: Sequence["Job"], texts: Sequence[str]) -> list[list[Hypothesis]]:
        """Put together from terms and translations of what stands between them."""
        seen: dict[str, Translation] = {}

        def translated(rank: int, asked: list[str]) -> list[Translated]:
            new = [text for text in dict.fromkeys(asked) if text not in seen]
            seen.update(zip(new, self.engine.translate(new, self.settings, details=True), strict=True))
            found = [(seen[text], min(rank, len(seen[text].alternatives) - 1)) for text in asked]
            return [
                Translated(each.alternatives[place].text, each.alternatives[place].alignment, each.complete)
                for each, place in found
            ]

        found: list[list[Hypothesis]] = [[] for _ in jobs]
        for rank in range(self.settings.n_best):
            outcomes = drive(translate_protected(texts, self.glossary.rules), partial(translated, rank))
            for hypotheses, new in zip(found, self._written(jobs, outcomes), strict=True):
                hypotheses += [each for each in new if each.tokens not in {h.tokens for h in hypotheses}]
        return found

    def _written(self, jobs: Sequence["Job"], outcomes: Sequence[Translated]) -> Iterator[list[Hypothesis]]:
        """Texts as hypotheses, with the scores that the model gives them; none if it cannot read so much."""
        model = self.engine.bundle.config.model
        for job, outcome in zip(jobs, outcomes, strict=True):
            tokens = self.engine._target_ids(outcome.text)
            if model.ends and len(tokens) >= model.longest:
                yield []
                continue
            [gained] = self.engine._scored([job.ids], [tokens])
            new = new_hypothesis(
                tokens,
                gained[: len(tokens) + outcome.complete],
                penalty=self.settings.penalty,
                complete=outcome.complete,
            )
            yield [self.engine._watched(job.ids, new) if self.details else new]

    # ---- what is still missing

    def _lacking(self, found: Sequence[list[Hypothesis]], wanted: Sequence[Wanted]) -> list[int]:
        return [i for i, each in enumerate(wanted) if each.terms and self._lack(found[i], each)]

    def _lack(self, hypotheses: Sequence[Hypothesis], wanted: Wanted) -> int:
        """Terms missing in all hypotheses together."""
        texts = self.target.decode_batch(each.tokens for each in hypotheses)
        return sum(len(missing_terms(text, wanted.terms)) for text in texts)

    def _improve(
        self,
        found: list[list[Hypothesis]],
        wanted: Sequence[Wanted],
        places: Sequence[int],
        again: Sequence[list[Hypothesis]],
    ) -> None:
        """Take what has more of the terms."""
        for i, hypotheses in zip(places, again, strict=True):
            if hypotheses and self._lack(hypotheses, wanted[i]) < self._lack(found[i], wanted[i]):
                found[i] = hypotheses


def _reads_inline(engine: "SegmentedEngine", settings: SearchConfig) -> bool:
    mode, learned = settings.glossary_mode, engine.bundle.config.inline_terms
    if mode == "inline" and not learned:
        raise HeedfulError(
            "this model has not learned to read inline terms",
            hint="leave out the mode; or train one that has: heedful train ... --set terms.share=0.1",
        )
    if mode == "constrain" and settings.method == "sample":
        raise HeedfulError("what is drawn at random cannot be searched for terms", hint="use mode split")
    return learned and mode in ("auto", "inline")


def spelled(tokenizer: Tokenizer, forms: Sequence[str]) -> Constraint:
    """The spellings of a term: with a space before it, and without."""
    found = [tuple(tokenizer.encode(form)) for form in forms]
    found += [spelling for form in forms if (spelling := _unspaced(tokenizer, form))]
    return tuple(dict.fromkeys(found))


def _unspaced(tokenizer: Tokenizer, form: str) -> tuple[int, ...]:
    """The tokens of a term after something that no space parts it from; none if it always grows together."""
    for lead in _LEADS:
        ids = tokenizer.encode(lead + form)
        for place in range(1, len(ids)):
            if tokenizer.spelled(ids[:place]) == (SPACE + lead).encode():
                return tuple(ids[place:])
    return ()


def joined_tokens(tokenizer: Tokenizer) -> Joined:
    """Whether two neighbouring tokens are in one word; bytes of a character always are."""

    @lru_cache(maxsize=65_536)
    def letters(token: int) -> str:
        return tokenizer.spelled([token]).decode("utf-8", errors="replace").replace(SPACE, " ")

    def joined(before: int, after: int) -> bool:
        left, right = letters(before)[-1:], letters(after)[:1]
        if "\ufffd" in (left, right):
            return True
        return bool(left and right) and in_one_word(left, right)

    return joined
