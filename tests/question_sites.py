"""Sites for tests: questions answered agent by agent through messages, with whoever is silent or spoils an answer."""

from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kinfed.backends.pooled import PooledAgents
from kinfed.backends.wire import Message, form_fault


def pooled(federation, learner=None, *, seed=0, task=None, embeddings=(), test=None):
    """The agents of a federation whose rows are here."""
    known = task or (learner.task if learner is not None else "regression")
    return PooledAgents(federation, known, seed, tuple(embeddings), learner, test)


def fit(learner, federation, weights, *, seed=0, **options):
    """Train on rows that are here."""
    return learner.fit(pooled(federation, learner, seed=seed), weights, **options)


def freeze(message):
    """What was received cannot be written to: it lies in the buffer it came in."""
    for array in message.arrays.values():
        array.flags.writeable = False


@dataclass
class Sites:
    """Every agent of a federation a site; answers that are not of the right form are thrown away, as a server does.

    `silent(exchange, place)` says who does not answer, `spoil(exchange, place, message)` changes answers, and `log` has the
    questions and messages of every exchange.
    """

    agents: PooledAgents
    silent: object = lambda exchange, place: False
    spoil: object = None
    log: list = field(default_factory=list)
    answered: dict = field(default_factory=dict)

    @property
    def spec(self):
        return self.agents.spec

    @property
    def digest(self):
        return self.agents.digest

    rows = None
    left_out = MappingProxyType({})

    def without(self, fold):
        return replace(self, agents=self.agents.without(fold), answered={})

    def labelled(self, phase, again=None):
        return self

    def side_by_side(self, jobs):
        return jobs

    def ask(self, question):
        messages = question.messages(self.spec)
        known = self.answered.setdefault(question.name, {}) if question.about_data else {}
        asked = {k: message for k, message in messages.items() if k not in known}
        answers = {k: known[k] for k in messages if k in known}
        if asked:
            exchange = len(self.log)
            self.log.append((question, asked))
            for place, message in asked.items():
                if self.silent(exchange, place):
                    continue
                freeze(message)
                answer = type(question).answer(self.agents.site(place), message)
                freeze(answer)
                if self.spoil is not None:
                    answer = self.spoil(exchange, place, answer)
                if fits(answer.arrays, question.form(self.spec, place, message)) and not question.fault(
                    self.spec, place, message, answer
                ):
                    answers[place] = answer
                    if question.about_data:
                        known[place] = answer
        copies = {k: Message(answers[k].settings, dict(answers[k].arrays)) for k in sorted(answers)}
        return question.combine(self.spec, copies)


def fits(arrays, form):
    """Whether arrays have the names, shapes, types and norms they must have."""
    return form_fault(arrays, form) is None


def sites(federation, learner, *, seed=0, silent=lambda exchange, place: False, spoil=None, **options):
    """Every agent of a federation a site of this process."""
    return Sites(pooled(federation, learner, seed=seed, **options), silent, spoil)
