import resource
import subprocess
import sys
import time
from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from kinfed.backends.flower.channel import FlowerChannel, category_of, server_app
from kinfed.backends.flower.nodes import InProcessGrid, client_app
from kinfed.backends.flower.records import encode_message
from kinfed.backends.wire import Failure, Request
from kinfed.backends.wire import Message as Answer
from kinfed.errors import InputError


def channel_to(answer, nodes=3, make_site=lambda context: context.node_config["partition-id"], grid_type=InProcessGrid):
    return grid_type(client_app(make_site, answer), [{} for _ in range(nodes)])


def echo(site, request, notes):
    return Answer({"site": site, "task": request.question, **request.settings}, request.arrays), notes


def test_every_node_answers_its_own_request():
    with channel_to(echo) as grid:
        channel = FlowerChannel(grid, 0.0)
        asked = {a: Request("local-training", {"k": k}, {"x": np.full(2, k)}) for k, a in enumerate(channel.reachable())}
        answers = channel.ask(asked, 10.0)
    assert len(answers) == 3
    for k, address in enumerate(asked):
        assert answers[address].settings == {"site": k, "task": "local-training", "k": k}
        np.testing.assert_array_equal(answers[address].arrays["x"], [k, k])


def test_notes_stay_with_their_node_and_sites_are_made_once():
    made = []

    def make_site(context):
        made.append(context.node_id)
        return context.node_config["partition-id"]

    def count(site, request, notes):
        seen = notes.get("seen", np.zeros((), dtype=np.int64)) + 1 + site
        return Answer({}, {"seen": np.array(seen)}), {"seen": np.array(seen)}

    with channel_to(count, make_site=make_site) as grid:
        channel = FlowerChannel(grid, 0.0)
        for turn in range(1, 4):
            answers = channel.ask({address: Request("describe") for address in channel.reachable()}, 10.0)
            assert [int(answer.arrays["seen"]) for answer in answers.values()] == [turn, 2 * turn, 3 * turn]
    assert len(made) == 3


def test_an_agent_that_raises_is_a_failure_with_its_message_and_the_others_answer():
    def answer(site, request, notes):
        if site == 1:
            raise InputError("the file x.csv does not exist; give another")
        return echo(site, request, notes)

    with channel_to(answer) as grid:
        channel = FlowerChannel(grid, 0.0)
        first, second, third = channel.ask({a: Request("describe") for a in channel.reachable()}, 10.0).values()
    assert isinstance(first, Answer)
    assert isinstance(third, Answer)
    assert second == Failure("the file x.csv does not exist; give another", "partition-id 1")


@pytest.mark.parametrize("told", [{"failed": "why", "name": 7}, {"failed": "why"}, {"failed": [], "name": "north"}])
def test_a_failure_that_is_malformed_is_a_failure_all_the_same(told):
    with channel_to(lambda site, request, notes: (Answer(told), notes), 1) as grid:
        channel = FlowerChannel(grid, 0.0)
        (answer,) = channel.ask({a: Request("describe") for a in channel.reachable()}, 10.0).values()
    assert answer == Failure("its answer cannot be read: what it says about its failure is malformed")


def test_an_agent_that_takes_too_long_is_late_and_only_that_one():
    def answer(site, request, notes):
        time.sleep(0.3 if site == 0 else 0.0)
        return echo(site, request, notes)

    with channel_to(answer) as grid:
        channel = FlowerChannel(grid, 0.0)
        first, *others = channel.ask({a: Request("describe") for a in channel.reachable()}, 0.1).values()
    assert isinstance(first, Failure)
    assert "too late" in first.reason
    assert all(isinstance(other, Answer) for other in others)


def test_a_node_that_is_not_there_is_a_failure():
    with channel_to(echo) as grid:
        channel = FlowerChannel(grid, 0.0)
        known = channel.reachable()[0]
        answers = channel.ask({known: Request("describe"), "12345": Request("describe")}, 10.0)
    assert isinstance(answers[known], Answer)
    assert isinstance(answers["12345"], Failure)
    assert "could not be sent" in answers["12345"].reason


class Network(InProcessGrid):
    """A Grid whose nodes answer only when they are told to."""

    def __init__(self, app, node_configs):
        super().__init__(app, node_configs)
        self.fates = {}
        self.pulls = 0
        self.sent = []

    def push_messages(self, messages):
        self.sent = list(messages)
        return super().push_messages(self.sent)

    def pull_messages(self, message_ids: Iterable[str]):
        self.pulls += 1
        for identifier in list(message_ids):
            message = self._waiting.get(identifier)
            if message is None:
                continue
            reply = self.fates.get(message.metadata.dst_node_id, lambda grid, one: grid._answer(one))(self, message)
            if reply is not None:
                del self._waiting[identifier]
                yield reply


def test_silence_is_bounded_in_time_and_others_are_heard():
    with channel_to(echo, grid_type=Network) as grid:
        channel = FlowerChannel(grid, 7.0)
        silent, slow, quick = channel.reachable()
        grid.fates = {
            int(silent): lambda grid, message: None,
            int(slow): lambda grid, message: grid._answer(message) if grid.pulls > 3 else None,
        }
        start = time.monotonic()
        answers = channel.ask({address: Request("describe") for address in channel.reachable()}, 1.0)
        assert 0.9 < time.monotonic() - start < 2.0
        assert 3 < grid.pulls < 12  # pauses grow
        assert {message.metadata.ttl for message in grid.sent} == {8.0}
    assert answers[silent] == Failure("no answer within 1 s")
    assert isinstance(answers[slow], Answer)
    assert isinstance(answers[quick], Answer)


@pytest.mark.parametrize(
    "code, reason, told",
    [
        (ErrorCode.NODE_UNAVAILABLE, "Node is offline", "the node is gone (Node is offline)"),
        (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "<class 'ValueError'>:<'bad'>", "ValueError: bad"),
        (ErrorCode.CLIENT_APP_CRASHED, None, "its process died"),
        (ErrorCode.UNKNOWN, None, "error 0 without a reason"),
        (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "<class 'KeyError'>:<'" + "x" * 9000 + "'>", "KeyError: " + "x" * 490),
    ],
)
def test_errors_are_failures_matched_by_what_they_answer_not_by_who_sent_them(code, reason, told):
    def fate(grid, message):
        reply = Message(Error(code, reason), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 1  # the SuperLink speaks for a dead node
        return reply

    with channel_to(echo, grid_type=Network) as grid:
        channel = FlowerChannel(grid, 0.0)
        dead, *alive = channel.reachable()
        grid.fates = {int(dead): fate}
        answers = channel.ask({address: Request("describe") for address in channel.reachable()}, 10.0)
    assert answers[dead] == Failure(told, gone=code == ErrorCode.NODE_UNAVAILABLE)
    assert all(isinstance(answers[address], Answer) for address in alive)


def test_an_answer_that_cannot_be_read_is_a_failure():
    with channel_to(echo, grid_type=Network) as grid:
        channel = FlowerChannel(grid, 0.0)
        broken, *_ = channel.reachable()
        grid.fates = {int(broken): lambda grid, message: Message(RecordDict(), reply_to=message)}
        answers = channel.ask({address: Request("describe") for address in channel.reachable()}, 10.0)
    assert answers[broken] == Failure("its answer cannot be read: a message has no text")


def test_a_reply_nobody_asked_for_is_thrown_away():
    def fate(grid, message):
        reply = Message(encode_message(Answer({"forged": True})), reply_to=message)
        reply.metadata.__dict__["_reply_to_message_id"] = "unknown"
        return reply

    with channel_to(echo, grid_type=Network) as grid:
        channel = FlowerChannel(grid, 0.0)
        odd, *_ = channel.reachable()
        grid.fates = {int(odd): fate}
        answers = channel.ask({address: Request("describe") for address in channel.reachable()}, 0.5)
    assert isinstance(answers[odd], Failure)
    assert not any(isinstance(one, Answer) and one.settings.get("forged") for one in answers.values())


def test_the_server_app_runs_its_main_with_a_channel_and_the_run_config():
    heard = {}

    def main(channel, run_config):
        heard["config"] = run_config
        heard["answers"] = channel.ask({address: Request("describe") for address in channel.reachable()}, 10.0)

    app = client_app(lambda context: context.run_config["seed"], echo)
    before = TaskIdentity._run_id
    with InProcessGrid(app, [{}, {}], {"seed": 5}) as grid:
        server_app(main)(grid, grid.server_context())
    assert heard["config"] == {"seed": 5}
    assert [answer.settings["site"] for answer in heard["answers"].values()] == [5, 5]
    assert TaskIdentity._run_id == before


def test_tasks_have_flowers_words():
    asked = ("describe", "moments", "derivatives", "local-training", "mean-gradients", "losses", "evaluation", "tally")
    assert {task: category_of(task) for task in asked} == {
        "describe": "query",
        "moments": "train",
        "derivatives": "train",
        "local-training": "train",
        "mean-gradients": "train",
        "losses": "evaluate",
        "evaluation": "evaluate",
        "tally": "query",
    }


def test_an_exchange_with_a_hundred_nodes_is_cheap_and_a_thousand_need_little_memory():
    with channel_to(echo, 100) as grid:
        channel = FlowerChannel(grid, 0.0)
        arrays = {"x": np.random.default_rng(0).normal(size=12_500)}
        asked = {address: Request("local-training", {}, arrays) for address in channel.reachable()}
        channel.ask(asked, 60.0)
        taken = []
        for _ in range(3):
            start = time.process_time()
            channel.ask(asked, 60.0)
            taken.append(time.process_time() - start)
    assert min(taken) < 0.1
    with channel_to(lambda site, request, notes: (Answer({}, {"x": request.arrays["x"][:10]}), notes), 1000) as grid:
        channel = FlowerChannel(grid, 0.0)
        asked = {address: Request("local-training", {}, arrays) for address in channel.reachable()}
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(4):  # 100 MB of requests each; none of the earlier ones is kept
            channel.ask(asked, 60.0)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grid._waiting == {}
    assert grown < 250_000  # kB


def test_flower_is_quiet_before_it_is_imported_and_kinfed_does_not_import_it():
    program = (
        "import os, sys\n"
        "import kinfed, kinfed.cli, kinfed.run\n"
        "assert 'flwr' not in sys.modules and 'FLWR_TELEMETRY_ENABLED' not in os.environ\n"
        "os.environ['FLWR_DISABLE_UPDATE_CHECK'] = '0'\n"
        "kinfed.run.require_flower()\n"
        "assert os.environ['FLWR_DISABLE_UPDATE_CHECK'] == '0'\n"
        "import kinfed.backends.flower.nodes\n"
        "from flwr.supercore import telemetry\n"
        "assert telemetry.FLWR_TELEMETRY_ENABLED == '0'\n"
        "assert 'torch' not in sys.modules\n"
    )
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120)
