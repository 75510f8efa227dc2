"""Runs across sites of this process, for tests: federations, channels that record or misbehave, and how models compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import kinfed
from kinfed.backends.server import connected
from kinfed.backends.site import InProcess, Site
from kinfed.backends.spec import FederationSpec
from kinfed.backends.transport import TimeoutPolicy
from kinfed.backends.wire import ENVELOPE, Failure, Message, Request, arrays_of
from kinfed.checkpoint import Store
from kinfed.federation import Agent, Federation
from kinfed.learners.base import site_learner
from kinfed.result import Personalization
from kinfed.run import run as run_on
from kinfed.run_setup import comparing
from kinfed.settings import Settings

B = 6

Answer = Message | Failure
Behaviour = Callable[[Request, Answer], Answer]


def generated(n_agents: int = B, n: int = 12, seed: int = 0) -> tuple[Federation, Federation]:
    found = kinfed.concept_shift(n_agents=n_agents, n=n, dim=3, spread=0.1, seed=seed)
    return found.train, found.test(20, seed=1)


def labelled(federation: Federation, kind: str = "text") -> Federation:
    """Three classes by the sign and size of y."""
    names = np.array(["high", "low", "middle"])

    def classes(y: np.ndarray) -> np.ndarray:
        codes = np.where(y > 0.7, 0, np.where(y < -0.7, 1, 2))
        return names[codes] if kind == "text" else codes

    agents = tuple(Agent(one.name, one.X, classes(one.y)) for one in federation)
    return replace(federation, agents=agents)


def same_models(first: object, second: object, learner: object, tolerance: float) -> None:
    sent = site_learner(learner)
    rows = np.arange(len(first))
    ours, theirs = sent.pack(first, rows), sent.pack(second, rows)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=tolerance)


def run(
    channel: InProcess,
    learner: object = None,
    rule: str = "q-aggregation",
    *,
    folder: Path | None = None,
    audit: Path | None = None,
    timeouts: TimeoutPolicy | None = None,
    **wanted: Any,
) -> Personalization:
    """The whole run over a channel, as a deployed server does it; `wanted` are further fields of `Settings`."""
    chosen = kinfed.make_learner("ridge") if learner is None else learner
    settings = Settings(rule=rule, **wanted)
    store = Store(folder, settings.telling(chosen))
    with connected(
        channel,
        chosen,
        comparing(settings),
        store,
        standardise=settings.standardise,
        seed=settings.seed,
        agents=len(channel.reachable()),
        timeouts=timeouts,
        log=audit,
    ) as agents:
        return run_on(agents, chosen, settings, store)


def spec_of(found: Personalization) -> FederationSpec:
    """What the sites of a run agreed on."""
    return found.agents.session.spec


def methods_of(found: Personalization) -> dict[str, Any]:
    """All models of a run by name."""
    return {**found.baselines, "personalized": found.models}


def parts_of(request: Request) -> list[Request]:
    """The requests in an envelope; any other request alone."""
    if request.question != ENVELOPE:
        return [request]
    parts = enumerate(request.settings["parts"])
    return [Request(part["question"], part["settings"], arrays_of(request.arrays, number)) for number, part in parts]


def answers_in(request: Request, answer: Message) -> list[Message]:
    """The answers to the requests in an envelope; any other answer alone."""
    if request.question != ENVELOPE:
        return [answer]
    return [Message(told, arrays_of(answer.arrays, number)) for number, told in enumerate(answer.settings["parts"])]


class Slow(InProcess):
    """Sites of this process that are asked as if they were far away: what can travel together does."""

    slow = True


class Unruly(Slow):
    """Sites of which some misbehave, whether they are asked alone or in an envelope; keeps who was asked what."""

    def __init__(self, sites: Sequence[Site], behaviours: Mapping[str, Behaviour]) -> None:
        super().__init__(sites)
        self.behaviours = dict(behaviours)
        self.gone: set[str] = set()
        self.asked: list[tuple[str, str]] = []

    def reachable(self) -> tuple[str, ...]:
        return tuple(one for one in super().reachable() if one not in self.gone)

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Answer]:
        there = {address: one for address, one in requests.items() if address not in self.gone}
        answers = super().ask(there, seconds)
        for address, request in requests.items():
            self.asked += [(address, part.question) for part in parts_of(request)]
            if address in self.gone:
                answers[address] = Failure("the node is gone", gone=True)
            elif address in self.behaviours:
                answers[address] = self._behaved(self.behaviours[address], request, answers[address])
        return answers

    @staticmethod
    def _behaved(behave: Behaviour, request: Request, answer: Answer) -> Answer:
        if request.question != ENVELOPE or isinstance(answer, Failure):
            return behave(request, answer)
        told = [behave(*both) for both in zip(parts_of(request), answers_in(request, answer), strict=True)]
        failed = [one for one in told if isinstance(one, Failure)]
        if failed:
            return failed[0]
        arrays = {f"{number}/{name}": array for number, one in enumerate(told) for name, array in one.arrays.items()}
        return Message({"parts": [one.settings for one in told]}, arrays)


def silent_in(task: str) -> Behaviour:
    return lambda request, answer: Failure("no answer in time") if request.question == task else answer


def corrupted(task: str, **changes: Callable[[np.ndarray], np.ndarray]) -> Behaviour:
    def behave(request: Request, answer: Answer) -> Answer:
        if request.question != task or isinstance(answer, Failure):
            return answer
        arrays = {name: changes[name](array) if name in changes else array for name, array in answer.arrays.items()}
        return Message(answer.settings, arrays)

    return behave


class KilledError(Exception):
    """The server dies."""


class Mortal(Slow):
    """A channel whose server is killed at its n-th exchange."""

    def __init__(self, sites: Sequence[Site], dies: int | None) -> None:
        super().__init__(sites)
        self.exchanges, self._dies = 0, dies

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Answer]:
        self.exchanges += 1
        if self.exchanges == self._dies:
            raise KilledError
        return super().ask(requests, seconds)


class Recording(Slow):
    """Keeps everything that crosses, as it crosses."""

    def __init__(self, sites: Sequence[Site]) -> None:
        super().__init__(sites)
        self.crossed: list[tuple[str, Request, Answer]] = []

    def ask(self, requests: Mapping[str, Request], seconds: float) -> dict[str, Answer]:
        answers = super().ask(requests, seconds)
        self.crossed += [(address, requests[address], answer) for address, answer in answers.items()]
        return answers
