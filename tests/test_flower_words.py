"""What a run on Flower says and leaves behind: names, lines, logs and rights of files; both apps in one process."""

import json
import logging
import os
import re
import stat
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import pytest

import kinfed
from flower_federation import NAMES, crossed, lines_of
from kinfed.backends.flower.channel import server_app
from kinfed.backends.flower.nodes import FIRST_NODE, InProcessGrid, client_app
from kinfed.backends.site import answer
from kinfed.deployment import server as deployed
from kinfed.deployment.server import ProgressLines, run_federation
from kinfed.deployment.site import site_from_context
from kinfed.errors import InputError
from pages import ROOT

RIDGE = {"target": "y", "task": "regression", "learner": "ridge", "rule": "q-aggregation", "test-size": 0.25, "agents": 3}


def node(folder, name, **more):
    return {"name": name, "data": str(folder / f"{name}.csv"), **more}


def run(out, configs, answering=answer, **options):
    """A run of the apps as they are deployed, on nodes with these configurations."""
    app = client_app(site_from_context, answering)
    run_config = {**RIDGE, "out": str(out), **options}
    with InProcessGrid(app, configs, run_config) as grid:
        server_app(run_federation)(grid, grid.server_context())


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    "broken, told",
    [
        ({"data": "nowhere.csv"}, "... does not exist"),
        ({"least-rows": 50}, "fewer than 50 rows"),
        ({"dat": "x"}, "no option 'dat'"),
    ],
)
def test_a_site_that_cannot_begin_is_called_by_its_configured_name(sites, tmp_path, broken, told, caplog):
    with caplog.at_level(logging.INFO, "flwr"):
        run(tmp_path, [node(sites, "north"), {**node(sites, "south"), **broken}, node(sites, "west")])
    missed = pd.read_csv(tmp_path / "attendance.csv")
    assert set(missed.agent) == {"south"}
    assert all(told in reason for reason in missed.reason)
    log = lines_of(tmp_path / "audit.jsonl")
    assert {line["agent"] for line in log if "agent" in line} == set(NAMES)
    assert "south: " in next(line for line in caplog.messages if line.startswith("introduction: 2 of 3 sites answered"))
    assert "Traceback" not in caplog.text
    whole = next(line for line in caplog.messages if line.startswith("no answer to describe: "))
    assert broken.get("data", "") in whole  # the site's own log names the file


def test_a_node_without_a_name_is_called_by_its_partition(sites, tmp_path):
    run(tmp_path, [node(sites, "north"), node(sites, "west"), {"data": "nowhere.csv", "partition-id": 7}])
    assert set(pd.read_csv(tmp_path / "attendance.csv").agent) == {"partition-id 7"}


def test_where_no_site_can_begin_the_run_ends_and_says_why(sites, tmp_path):
    configs = [node(sites, name, **{"least-rows": 50}) for name in NAMES]
    with pytest.raises(InputError, match=r"no agent can take part \(north: this site has fewer than 50 rows.*; south: "):
        run(tmp_path, configs)


def test_a_site_without_most_of_the_columns_is_left_out(sites, tmp_path):
    table = pd.read_csv(sites / "south.csv")
    table.rename(columns={name: f"{name}s" for name in table.columns if name != "y"}).to_csv(
        tmp_path / "south.csv", index=False
    )
    run(tmp_path / "out", [node(sites, "north"), node(tmp_path, "south"), node(sites, "west")])
    (missed,) = pd.read_csv(tmp_path / "out" / "attendance.csv").itertuples(index=False)
    assert tuple(missed)[:2] == ("south", "introduction")
    assert missed.reason.startswith("it lacks most of the columns that others have, such as ")


def test_a_node_that_has_told_no_name_is_called_by_its_number(sites, tmp_path):
    def make_site(context):
        if context.node_config["name"] == "south":
            raise ImportError("kinfed is not installed")  # as Flower reports it, before anything of ours is run
        return site_from_context(context)

    run_config = {**RIDGE, "out": str(tmp_path)}
    with InProcessGrid(client_app(make_site), [node(sites, name) for name in NAMES], run_config) as grid:
        server_app(run_federation)(grid, grid.server_context())
    assert set(pd.read_csv(tmp_path / "attendance.csv").agent) == {f"at {list(grid.get_node_ids())[1]}"}


def test_a_run_begins_with_those_that_are_there_in_time(sites, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "flwr"):
        run(tmp_path, [node(sites, name) for name in NAMES[:2]], seconds=0.5)
    assert "waiting for 3 sites, at most 0.5 s" in caplog.messages
    assert list(pd.read_csv(tmp_path / "weights.csv", index_col=0).index) == list(NAMES[:2])


def test_of_a_mistake_nobody_foresaw_the_server_hears_the_kind_and_the_site_logs_where_it_was(sites, tmp_path, caplog):
    def fails(site, request, notes):
        if site.name == "south" and request.question == "sketches":
            object.__setattr__(site, "_sessions", None)
        return answer(site, request, notes)

    run(tmp_path, [node(sites, name) for name in NAMES], fails, quorum=0.1)
    told = pd.read_csv(tmp_path / "attendance.csv").query("phase == 'sketches'")
    assert list(told.agent) == ["south"]
    assert list(told.reason) == ["the question sketches failed (TypeError); the log of the site says more"]
    (record,) = [one for one in caplog.records if one.getMessage().startswith("no answer to sketches: ")]
    assert record.exc_info is not None


# ---------------------------------------------------------------- whoever comes late


class LateGrid(InProcessGrid):
    """The last node connects when all results but its own are there, and never answers some questions."""

    def __init__(self, *args, out, silent):
        super().__init__(*args)
        self.out, self.silent = out, silent
        self.last = max(self._contexts)

    def pull_messages(self, message_ids):
        def heard(message):
            return message.metadata.dst_node_id != self.last or message.metadata.group_id not in self.silent

        return super().pull_messages([one for one in message_ids if one in self._waiting and heard(self._waiting[one])])

    def get_node_ids(self):
        return [one for one in self._contexts if one != self.last or (self.out / "index.html").exists()]


def run_with_late(out, configs, answering=answer, silent=(), **options):
    app = client_app(site_from_context, answering)
    run_config = {**RIDGE, "out": str(out), "agents": len(configs) - 1, **options}
    with LateGrid(app, configs, run_config, out=out, silent=silent) as grid:
        server_app(run_federation)(grid, grid.server_context())


RESULTS = ("weights.csv", "scores.csv", "index.html", "attendance.csv", "traffic.csv", "result.json")


def test_the_others_have_their_results_before_a_late_site_is_asked_and_its_join_is_quiet(sites, tmp_path, caplog):
    out, seen = tmp_path / "out", []

    def watching(site, request, notes):
        if site.name == "west":
            seen.append((request.question, {name: (out / name).read_bytes() for name in RESULTS}))
            assert all((tmp_path / name / "model" / "model.json").exists() for name in NAMES[:2])
        return answer(site, request, notes)

    with caplog.at_level(logging.INFO):
        run_with_late(out, [node(sites, name, out=str(tmp_path / name)) for name in NAMES], watching)
    asked, before = [question for question, _ in seen], seen[0][1]
    assert asked[:3] == ["describe", "agree", "sketches"]  # one sketch, and nothing is asked in vain
    assert asked.count("sketches") == 1
    assert not [record for record in caplog.records if record.exc_info or record.levelno > logging.INFO]
    assert "agent west came late and has weights and a model" in caplog.messages
    assert len(pd.read_csv(out / "attendance.csv")) == 0
    for name in ("weights.csv", "scores.csv"):  # of the others nothing has changed
        assert (out / name).read_bytes() == before[name]
    assert list(pd.read_csv(out / "newcomers-weights.csv").target) == ["west"]
    assert list(kinfed.load(out).joined) == ["west"]
    assert "west" in set(pd.read_csv(out / "traffic.csv").agent)
    assert kinfed.load_model(tmp_path / "west" / "model").agent == "west"


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("last", ["describe", "agree", "sketches", "own-weights", "moments"])
def test_a_late_site_that_fails_or_hangs_costs_only_itself(sites, tmp_path, last, hangs):
    def dying(site, request, notes):
        if site.name == "west" and request.question == last:
            raise InputError("the disk is full")
        return answer(site, request, notes)

    configs, silent = [node(sites, name) for name in NAMES], (last,) if hangs else ()
    run_with_late(tmp_path, configs, answer if hangs else dying, silent, seconds=1)
    missed = set(pd.read_csv(tmp_path / "attendance.csv").agent)
    assert missed == {f"at {len(NAMES) - 1 + FIRST_NODE}" if (last, hangs) == ("describe", True) else "west"}
    assert list(pd.read_csv(tmp_path / "weights.csv", index_col=0).index) == list(NAMES[:2])
    found = kinfed.load(tmp_path)
    assert not found.joined
    assert np.isfinite(found.scores.to_numpy()).all()
    assert lines_of(tmp_path / "audit.jsonl")[-1]["event"] == "the run is complete"


# ---------------------------------------------------------------- lines for whoever started the run


def test_every_exchange_has_a_line_that_says_who_answered_how_far_it_is_and_the_time(monkeypatch, caplog):
    now = [100.0]
    monkeypatch.setattr(deployed.time, "monotonic", lambda: now[0])
    lines = ProgressLines(now[0])
    with caplog.at_level(logging.INFO, "flwr"):
        now[0] = 146.0
        lines.exchanged("weights", 3, {})
        now[0] = 231.2
        lines.worked("personalized: training", 2, 20)
        lines.exchanged("training 2", 2, {"west": "the node is gone"})
        now[0] = 232.0
        lines.exchanged("training 3", 3, {})  # a second later there is no other
        lines.exchanged("training 4", 2, {"west": "it is not there"})  # but for one that somebody missed
        lines.worked("personalized: training", 20, 20)
        now[0] = 240.0
        lines.exchanged("evaluation", 3, {})
    assert "\n".join(caplog.messages[:2]) in (ROOT / "docs" / "flower.md").read_text()
    assert caplog.messages[2:] == [
        "training 4: 2 of 3 sites answered; west: it is not there; personalized: training: 2 of 20; 132 s so far",
        "evaluation: 3 of 3 sites answered; 140 s so far",
    ]


def test_a_run_tells_how_far_it_is(sites, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(deployed, "_SECONDS_BETWEEN", 0.0)
    with caplog.at_level(logging.INFO, "flwr"):
        run(tmp_path, [node(sites, name) for name in NAMES])
    told = [message.partition(":")[0] for message in caplog.messages if "3 of 3 sites answered" in message]
    phases = dict.fromkeys(line["phase"] for line in lines_of(tmp_path / "audit.jsonl") if "phase" in line)
    assert told == list(phases)
    assert caplog.messages[0] == "waiting for 3 sites, at most 600 s"
    assert caplog.messages[-1] == f"the results are in {tmp_path.resolve()}"


# ---------------------------------------------------------------- the site's own log


@pytest.mark.parametrize("rule", ["q-aggregation", "gradient"])
def test_a_site_with_a_folder_writes_down_what_the_server_does(sites, tmp_path, rule):
    page = (ROOT / "docs" / "what-leaves-a-site.md").read_text().splitlines()
    (shown,) = (json.loads(line) for line in page if line.startswith('{"time"') and '"run"' in line)
    configs = [node(sites, name, out=str(tmp_path / name)) for name in NAMES[:2]] + [node(sites, "west")]
    run(tmp_path / "out", configs, rule=rule)
    at_the_server = lines_of(tmp_path / "out" / "audit.jsonl")
    for name in NAMES[:2]:
        mine = lines_of(tmp_path / name / "audit.jsonl")
        assert crossed(mine, name) == crossed(at_the_server, name)
        assert {line["run"] for line in mine} == {"1"}
        for line in mine:
            assert datetime.strptime(line["time"], "%Y-%m-%dT%H:%M:%S%z").utcoffset() == timedelta(0)
            assert len(line["shapes"]) == len(line["arrays"])
            if line["direction"] == "to the server":
                assert line.keys() == shown.keys()
        sketched = [line for line in mine if line["question"] == "sketches" and line["direction"] == "to the server"]
        assert sketched[0]["shapes"] == [[500], []]
    assert not (tmp_path / "west").exists()  # without a folder there is no log


def test_a_site_writes_down_what_it_refused_in_the_words_the_server_heard(sites, tmp_path):
    configs = [node(sites, name, out=str(tmp_path / name)) for name in NAMES]
    configs[1]["least-rows"], configs[2]["data"] = 50, "nowhere.csv"
    run(tmp_path / "out", configs)
    missed = pd.read_csv(tmp_path / "out" / "attendance.csv").groupby("agent")["reason"].first()
    for name in NAMES[1:]:
        assert {line["missed"] for line in lines_of(tmp_path / name / "audit.jsonl") if "missed" in line} == {missed[name]}


def test_a_site_that_cannot_write_its_log_answers_nothing(sites, tmp_path):
    (tmp_path / "file").touch()
    configs = [node(sites, name) for name in NAMES]
    configs[2]["out"] = str(tmp_path / "file" / "below")
    run(tmp_path / "out", configs)
    missed = pd.read_csv(tmp_path / "out" / "attendance.csv")
    assert set(missed.agent) == {"west"}
    assert "its own log cannot be written" in missed.reason[0]
    assert str(tmp_path) not in missed.reason[0]


# ---------------------------------------------------------------- rights


def test_what_a_run_keeps_is_for_its_owner_alone(sites, tmp_path):
    kept, mine = tmp_path / "kept", tmp_path / "mine"
    umask = os.umask(0)
    try:
        for number in range(2):  # the second time there is a model of an earlier run
            out = tmp_path / "run" / str(number)
            run(out, [node(sites, name, out=str(mine / name)) for name in NAMES], checkpoint=str(kept / str(number)))
        (tmp_path / "there").mkdir()
        (tmp_path / "there").chmod(0o755)
        run(tmp_path / "there", [node(sites, name) for name in NAMES])
        assert stat.S_IMODE((tmp_path / "there").stat().st_mode) == 0o755
        (tmp_path / "there").chmod(0o700)
    finally:
        os.umask(umask)
    private = [*tmp_path.rglob("*.npz"), *tmp_path.rglob("*.json"), *tmp_path.rglob("audit.jsonl")]
    assert len(private) > 10
    assert {stat.S_IMODE(one.stat().st_mode) for one in private} == {0o600}
    folders = [one for one in tmp_path.rglob("*") if one.is_dir()]
    assert {stat.S_IMODE(one.stat().st_mode) for one in folders} == {0o700}
    assert any(one.parent.name == "earlier" for one in folders)


# ---------------------------------------------------------------- the page

HERE, DEPLOYED, RUNS = "test_flower_words.py", "test_flower_deployment.py", "test_flower_runs.py"
FAULTS, LOST, ROWS = "test_site_faults.py", "test_lost_sites.py", "test_rows.py"

SENTENCES = {  # what docs/flower.md says happens when something goes wrong, and the test that says so too
    "Without the database a SuperLink that is started again knows no node, and every SuperNode ends within half a minute": (
        DEPLOYED,
        "test_without_its_database_a_link_that_is_started_again_knows_no_node",
    ),
    "thanks to the first line only you can read it": (DEPLOYED, "test_the_database_is_for_its_owner_alone"),
    "with fewer rows to train on the site answers nothing": (
        "test_flower_setup.py",
        "test_a_node_with_few_rows_answers_nothing",
    ),
    "The run waits for `agents` sites, as long as `seconds` allow, and starts with those that are there": (
        HERE,
        "test_a_run_begins_with_those_that_are_there_in_time",
    ),
    "who answered, who did not and why, how far the work is, and the time so far": (
        HERE,
        "test_every_exchange_has_a_line_that_says_who_answered_how_far_it_is_and_the_time",
    ),
    "files that only their owner can read, whatever the umask": (HERE, "test_what_a_run_keeps_is_for_its_owner_alone"),
    "`audit.jsonl` beside them has every message": (HERE, "test_a_site_with_a_folder_writes_down_what_the_server_does"),
    "is back within `seconds` is asked again in the same round": (
        LOST,
        "test_one_that_is_back_in_time_is_asked_again_in_the_same_round",
    ),
    "a SuperNode of the same key that is started before then is refused, and ends": (
        DEPLOYED,
        "test_a_node_that_is_started_again_at_once_is_refused_and_connects_later",
    ),
    "the others go on without it after `seconds`; later phases ask it again": (
        FAULTS,
        "test_an_agent_that_dies_and_comes_back_is_heard_again_but_has_no_part_in_the_training",
    ),
    "The run fails only if fewer than `quorum` of all sites are still there": (
        FAULTS,
        "test_the_run_fails_only_when_the_quorum_is_lost",
    ),
    "| when it introduced itself | it is no part of the run; once it is there, it joins as a site that comes late |": (
        FAULTS,
        "test_an_agent_that_misses_the_agreement_is_no_part_of_it",
    ),
    "| its sketch, where a rule makes weights | nobody listens to it, and it learns alone |": (
        FAULTS,
        "test_a_bad_sketch_is_left_out_and_its_agent_named",
    ),
    "| its row of weights | it learns alone |": (FAULTS, "test_an_agent_that_does_not_tell_its_weights_learns_alone"),
    "| a question of calibration | its rows have no say in that step |": (
        FAULTS,
        "test_an_agent_that_fails_in_calibration_is_left_out_of_that_step",
    ),
    "it is out of the training for good, even if it comes back in a later round": (
        LOST,
        "test_one_lost_that_is_back_in_a_later_round_stays_out_of_the_training",
    ),
    "everybody's weights are solved again without it, by the same rule and with what calibration chose": (
        LOST,
        "test_a_calibration_keeps_its_choice_when_an_agent_is_lost",
    ),
    "and training goes on from where it was": (LOST, "test_one_lost_for_good"),
    "| the tests | its models are not scored, and it keeps the model it had |": (
        LOST,
        "test_moments_that_are_there_are_used_whatever_becomes_of_their_agent",
    ),
    "No site is given a model that its own rows had no part in.": (LOST, "test_two_of_four_lost"),
    "the model of an earlier run stays in its folder, as it was": (
        LOST,
        "test_one_lost_that_is_back_for_the_tests_keeps_the_model_it_had",
    ),
    "For ridge a site has taken part once its moments are there": (
        LOST,
        "test_moments_that_are_there_are_used_whatever_becomes_of_their_agent",
    ),
    "`weights.csv` has the weights that were used, with a row of zeros for a site without a model": (
        LOST,
        "test_what_was_asked_and_used_and_what_follows_is_written",
    ),
    "`weights-asked.csv`, where sites were lost, those that were asked for": (
        LOST,
        "test_what_was_asked_and_used_and_what_follows_is_written",
    ),
    "`last-run.txt` in the folder of every site that is there at the end say what follows": (
        LOST,
        "test_one_lost_that_is_back_for_the_tests_keeps_the_model_it_had",
    ),
    "at a node without `out`, to their number alone": (ROWS, "test_a_run_that_goes_on_does_not_go_on_with_other_rows"),
    "nobody else's model changes": (FAULTS, "test_a_late_joiner_gets_weights_and_a_model_and_nobody_else_changes"),
    "By then the others' results are written, in `out` and at the sites": (
        HERE,
        "test_the_others_have_their_results_before_a_late_site_is_asked_and_its_join_is_quiet",
    ),
    "A row that is edited, added or removed is noticed at the next message": (
        "test_flower_rows.py",
        "test_a_file_that_is_changed_is_noticed_at_the_next_message",
    ),
    "answers nothing more until the rows are put back": (ROWS, "test_rows_that_are_put_back_are_welcome_again"),
    "A file that is only sorted anew changes nothing": (
        "test_flower_rows.py",
        "test_files_that_are_sorted_anew_before_every_message_change_nothing",
    ),
    "A run that goes on after the host died is held to the rows it began with too": (
        ROWS,
        "test_a_run_that_goes_on_does_not_go_on_with_other_rows",
    ),
    "a file that is not there,": (HERE, "test_a_site_that_cannot_begin_is_called_by_its_configured_name"),
    "most of the columns missing": (HERE, "test_a_site_without_most_of_the_columns_is_left_out"),
    "without one, as `partition-id 2`": (HERE, "test_a_node_without_a_name_is_called_by_its_partition"),
    "its own log has the whole error": (HERE, "test_a_site_that_cannot_begin_is_called_by_its_configured_name"),
    "If no site is left, the run fails and says why": (HERE, "test_where_no_site_can_begin_the_run_ends_and_says_why"),
    "is called by its number in Flower": (HERE, "test_a_node_that_has_told_no_name_is_called_by_its_number"),
    "the SuperNodes find it within half a minute, and Flower counts the run that was on as failed": (RUNS, "killed"),
    "the run goes on after the last phase or round that was finished": (RUNS, "test_deployed"),
    "What sites were judging then is judged again": (
        "test_resuming.py",
        "test_sites_that_have_told_their_scores_are_not_asked_again",
    ),
    "one whose node has no `out` has lost them, and then all of it is judged again": (
        "test_resuming.py",
        "test_a_server_that_was_killed_finds_what_sites_kept",
    ),
    "where a rule makes weights, it is asked for one sketch": (
        HERE,
        "test_the_others_have_their_results_before_a_late_site_is_asked_and_its_join_is_quiet",
    ),
    "or in the next run with the same checkpoint": (
        "test_site_faults.py",
        "test_a_late_joiner_gets_weights_and_a_model_and_nobody_else_changes",
    ),
    "One that fails or hangs gets no model, and costs the others nothing": (
        HERE,
        "test_a_late_site_that_fails_or_hangs_costs_only_itself",
    ),
    "its key is not registered | ends in seconds with status 1": (
        DEPLOYED,
        "test_a_node_whose_key_is_not_registered_ends_and_the_link_says_why",
    ),
    "it trusts another authority | ends in seconds with status 1": (
        DEPLOYED,
        "test_a_node_that_trusts_another_authority_ends_and_says_so",
    ),
    "tries on for ever, or as long as `--max-wait-time` says": (
        DEPLOYED,
        "test_a_node_in_plaintext_tries_on_as_if_nobody_were_there",
    ),
    "`num-supernodes` must be the number of agents in the data": (
        "test_flower_setup.py",
        "test_mistakes_in_a_configuration_are_named",
    ),
}


ADVICE = ("One that has ended is to be started again when the cause is mended.",)


def test_what_the_page_says_of_mishaps_is_tested():
    page = " ".join((ROOT / "docs" / "flower.md").read_text().split())
    mishaps = page[page.index("goes wrong - **") : page.index("## 7.")]
    for told in re.split(r"(?<=\.) (?=[A-Z`*-])", mishaps.strip()):
        assert told in ADVICE or any(sentence in told or told in sentence for sentence in SENTENCES), told
    for sentence, (file, test) in SENTENCES.items():
        assert sentence in page, sentence
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), test
