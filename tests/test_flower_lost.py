"""Sites lost in a deployed training, with TLS and keys: killed for good, back for the tests, back in the next round.

The models of those left are compared with those of a run across sites of this process in which the lost ones are absent
from the same round on; `test_lost_sites` compares such runs with pooled training.
"""

import re

import numpy as np
import pandas as pd
import pytest

import kinfed
from flower_deployment import Deployment, Network, wait_until
from flower_federation import SEED, config, lines_of, write_federation_app, write_tables
from kinfed.backends.site import sites_of
from kinfed.backends.wire import Failure
from kinfed.model import LAST_RUN, load_model
from score_tables import scores_in
from site_runs import Unruly, methods_of
from site_runs import run as run_across

pytestmark = [
    pytest.mark.deployed,
    pytest.mark.server,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.xdist_group("four"),
]

NAMES = ("east", "north", "south", "west")
ROUNDS = 4
SECONDS = 120.0
"""More than Flower takes to notice that a node is dead, and than an exchange takes on a busy machine."""
NETWORK = {"hidden": (4,), "method": "fedavg", "rounds": ROUNDS, "local_epochs": 2, "learning_rate": 0.02}
NETWORK |= {"dtype": "float64", "threads": 1}
LEARNER = f"""
from kinfed.learners.neural import TorchLearner

def make_learner(name, task):
    return TorchLearner(task=task, **{NETWORK!r})
"""
OUT_OF_TRAINING = "it is out of the training, the others go on with weights without it, and it gets no model in this run"
NOT_SCORED = "its models are not scored, and it keeps the model it had"


def learner_of():
    from kinfed.learners.neural import TorchLearner

    return TorchLearner(task="regression", **NETWORK)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return write_tables(tmp_path_factory.mktemp("tables"), NAMES)


@pytest.fixture(scope="module")
def federation(tables):
    """Training and test rows, as the sites set them aside."""
    return kinfed.read_federation(tables / "all.csv", target="y", agent="site").split(test_size=0.25, seed=SEED)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = write_federation_app(tmp_path_factory.mktemp("app"))
    next(folder.rglob("learner.py")).write_text(LEARNER)
    return folder


@pytest.fixture(scope="module")
def four(tmp_path_factory, tables, federation):
    """A SuperLink and four SuperNodes; every site has a model of an earlier run."""
    train, test = federation
    earlier = kinfed.personalize(train, learner_of(), "q-aggregation", test, seed=SEED + 1)
    with Network() as network, Deployment(tmp_path_factory.mktemp("four"), network, nodes=len(NAMES)) as made:
        for number, name in enumerate(NAMES):
            earlier.model(name).save(kept(tables, name) / "model")
            made.start_node(number, f'name="{name}" data="{tables / name}.csv" out="{kept(tables, name)}"')
        made.wait_for_nodes()
        yield made


def kept(tables, name):
    return tables / "kept" / name


def contents(folder):
    """Every file of a site's folder but its log and its state."""
    found = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {str(name): path.read_bytes() for name, path in found.items() if name.parts[0] not in ("audit.jsonl", "state")}


def asked_in(phase, agent):
    """What the server's log has of a question to an agent."""
    return re.compile(rf'"agent": "{agent}", "phase": "{phase}", "direction": "to the agent"')


class Loss:
    """A run in whose second round sites are killed.

    The exchanges after that are "training 3, weights", where the baselines repeat the round and weights are solved again;
    "training 4, training 3", where the personal models repeat it; and so on to "training 5", their last round.
    """

    def __init__(self, deployment, app, tables, folder, lost):
        deployment.revive_nodes()
        self.deployment, self.tables, self.lost, self.out = deployment, tables, lost, folder / "out"
        self.left = [name for name in NAMES if name not in lost]
        self.before = {name: contents(kept(tables, name)) for name in lost}
        options = {"agents": len(NAMES), "seconds": SECONDS}
        self.run = deployment.run(app, config(self.out, "torch", **options))
        self.log = deployment.wait_for(self.out / "audit.jsonl", 120)
        for name in lost:
            self.wait_for(asked_in("training 2", name), "the second round")
        for name in lost:
            deployment.supernodes[NAMES.index(name)].kill()
        for name in lost:
            self.wait_for(re.compile(rf'"agent": "{name}", "phase": "training 2", "missed"'), "the loss of a site")

    def wait_for(self, pattern, what):
        wait_until(lambda: pattern.search(self.log.read_text()), 600, what)

    def return_before(self, phase):
        """Start those that were killed; they are connected before that exchange."""
        self.deployment.revive_nodes(*(NAMES.index(name) for name in self.lost))
        asked = asked_in(phase, self.left[0]).search(self.log.read_text())
        assert not asked, f"{phase} was asked before they were back: this machine is too busy for this test"

    def finish(self):
        self.deployment.wait_for(self.out / "attendance.csv", 600)
        self.deployment.wait_for_end(self.run)
        return kinfed.load(self.out, learner=learner_of())

    def asked_since(self, name):
        """What a site was asked after its loss."""
        mine = [line for line in lines_of(self.log) if line.get("agent") == name]
        since = next(place for place, line in enumerate(mine) if "missed" in line)
        return [line["phase"] for line in mine[since:] if "direction" in line]


def absent_from_the_second_round(federation, lost):
    """The result of a run across sites of this process in which some do not answer in the second round."""
    train, test = federation
    learner = learner_of()

    def behave(request, answer):
        late = request.question == "local-training" and request.settings["asked"]["epoch"] == 1
        return Failure("it is not there") if late else answer

    channel = Unruly(sites_of(train, test, learner), {str(train.names.index(name)): behave for name in lost})
    return run_across(channel, learner, seed=SEED)


def check(loss, federation, back):
    """No model for the lost, the others' as in a run without them from that round on, and all files say so."""
    found, absent, test = loss.finish(), absent_from_the_second_round(federation, loss.lost), federation[1]
    lost, left, out = list(loss.lost), loss.left, loss.out
    assert list(found.withheld) == list(absent.withheld) == lost
    for name, models in methods_of(found).items():
        theirs = methods_of(absent)[name]
        assert len(models.models) == len(left)
        np.testing.assert_allclose(models.models.stack.numpy(), theirs.models.stack.numpy(), atol=1e-6, rtol=0)
    for name in lost:
        with pytest.raises(kinfed.KinfedError, match=f"no model of agent {name}: it was lost in training"):
            found.model(name)

    weights, asked = (pd.read_csv(out / f"{one}.csv", index_col=0) for one in ("weights", "weights-asked"))
    np.testing.assert_allclose(weights.to_numpy(), absent.weights.matrix, atol=1e-6)
    np.testing.assert_allclose(asked.to_numpy(), absent.asked.matrix, atol=1e-6)
    assert not weights.loc[lost].any(axis=None)
    assert not weights[lost].any(axis=None)
    assert asked.loc[left, lost].any(axis=None)
    np.testing.assert_allclose(weights.loc[left].sum(axis=1), 1.0)

    scores = scores_in(out)
    assert scores.loc[lost].isna().all(axis=None)
    np.testing.assert_allclose(scores.loc[left], absent.scores.loc[left], atol=1e-6)
    assert found.compare("local").n_agents == len(left)
    assert found.compare("local").first_mean == pytest.approx(scores.loc[left, "personalized"].mean())
    told = "1 agent of 4 has no model" if len(lost) == 1 else f"{len(lost)} agents of 4 have no model"
    page = (out / "index.html").read_text()
    assert f"{told} in this run" in page
    streamed = loss.deployment.flwr("log", str(loss.run), "test", "--show").stdout
    assert f"{len(left)} agents took part" in streamed
    assert "Traceback" not in streamed

    missed = pd.read_csv(out / "attendance.csv")
    expected = [(name, "training 2", OUT_OF_TRAINING) for name in lost]
    expected += [] if back else [(name, "evaluation", NOT_SCORED) for name in lost]
    assert sorted(zip(missed["agent"], missed["phase"], missed["what follows"], strict=True)) == sorted(expected)

    for name in lost:  # the model it had is as it was, and where the site is there it was told why
        after = contents(kept(loss.tables, name))
        if back:
            told = after.pop(LAST_RUN).decode()
            assert f"No model was delivered: agent {name} was lost in training 2" in told
            loss.before[name].pop(LAST_RUN, None)
        assert after == loss.before[name]
    for name in left:
        told = (kept(loss.tables, name) / LAST_RUN).read_text()
        trained = re.search(r"It was trained on: (.*)", told)[1]
        assert found.stamp.run in told
        assert not any(one in trained for one in lost)
        assert "Asked for, before agents were lost: " in told
        model = load_model(kept(loss.tables, name) / "model", learner=learner_of())
        assert model.stamp.run == found.stamp.run
        assert model.weights == pytest.approx({one: weight for one, weight in weights.loc[name].items() if weight > 0})
        np.testing.assert_allclose(model.predict(test[name].X), absent.predict(name, test[name].X), atol=1e-6)
    assert lines_of(loss.log)[-1]["event"] == "the run is complete"


def test_one_killed_that_returns_for_the_tests(four, app, tables, federation, tmp_path):
    loss = Loss(four, app, tables, tmp_path, ["north"])
    loss.wait_for(asked_in("training 5, training 4", "east"), "the third round")
    loss.return_before("evaluation")
    check(loss, federation, back=True)
    assert set(loss.asked_since("north")) == {"evaluation", "agreement"}


def test_one_killed_for_good(four, app, tables, federation, tmp_path):
    check(Loss(four, app, tables, tmp_path, ["south"]), federation, back=False)


def test_one_killed_that_returns_in_the_third_round(four, app, tables, federation, tmp_path):
    loss = Loss(four, app, tables, tmp_path, ["east"])
    loss.return_before("training 5, training 4")  # the third round of the personal models, the last of the others
    check(loss, federation, back=True)
    assert set(loss.asked_since("east")) == {"evaluation", "agreement"}


def test_two_of_four_killed(four, app, tables, federation, tmp_path):
    check(Loss(four, app, tables, tmp_path, ["north", "south"]), federation, back=False)
