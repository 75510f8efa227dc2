"""One `Settings`: a field that is added is an option everywhere."""

import dataclasses
import tomllib

import pytest
import typer

import kinfed
from kinfed import settings as module
from kinfed.cli import commands, options
from kinfed.cli.config import settings_text
from kinfed.deployment.options import config_text, read_settings
from kinfed.reporting import report_data
from kinfed.settings import FLOWER, PERSONALIZE, Settings, choice, options_of


@pytest.fixture
def wider(monkeypatch):
    """`Settings` with one more field."""
    made = dataclasses.make_dataclass(
        "Settings", [("colour", str, choice("red", "Colour of the ink.", "Output"))], bases=(Settings,), frozen=True
    )
    for place in (module, options, kinfed.run_setup):
        monkeypatch.setattr(place, "Settings", made)
    return made


def test_a_field_that_is_added_is_an_option_everywhere(wider, tmp_path):
    assert options_of(PERSONALIZE)["colour"].metadata["help"] == "Colour of the ink."
    # the command line
    app = typer.Typer()
    seen = []
    app.command()(options.settings_command(PERSONALIZE, lambda settings, json, force: seen.append(settings)))
    command = typer.main.get_command(app)
    option = next(one for one in command.params if "--colour" in one.opts)
    assert (option.help, option.default) == ("Colour of the ink.", "red")
    (tmp_path / "settings.toml").write_text('data = "d.csv"\nout = "x"\ncolour = "blue"\n')
    command.main(["--config", str(tmp_path / "settings.toml")], standalone_mode=False)
    command.main(["d.csv", "--out", "x", "--colour", "green"], standalone_mode=False)
    assert [one.colour for one in seen] == ["blue", "green"]
    # a settings file, and the command to repeat
    assert tomllib.loads(settings_text(seen[1], PERSONALIZE))["colour"] == "green"
    assert "--colour green" in seen[1].command(PERSONALIZE)
    # Flower's options
    assert '# Colour of the ink.\ncolour = "red"' in config_text()
    assert wider.read(FLOWER, {"colour": "blue"}).colour == "blue"
    # keyword arguments, and the report
    train = kinfed.concept_shift(n_agents=4, n=10, dim=2, spread=0.0, seed=0).train
    result = kinfed.personalize(train, rule="local", baselines=False, colour="yellow")
    assert result.settings.colour == "yellow"
    page = result.report(tmp_path / "page", settings=result.settings.shown(PERSONALIZE)).read_text()
    assert "colour" in page
    assert "yellow" in page
    assert report_data(result).settings["colour"] == "yellow"


def test_what_is_chosen_is_read_again_as_it_was():
    chosen = Settings(
        data="d.csv", target="y", leave_out=("id", "name"), options={"steps": 30}, bandwidth=2.5, kernel="laplace", seed=3
    )
    assert Settings.read(PERSONALIZE, tomllib.loads(settings_text(chosen, PERSONALIZE))) == chosen
    assert read_settings(chosen.chosen(FLOWER)) == chosen


def test_every_command_has_the_options_of_its_place():
    for place, command in (
        ("theory", commands.theory),
        ("weights", commands.weights),
        ("personalize", commands.personalize),
    ):
        names = {one.name for one in options_of(place).values()}
        assert names <= set(command.__annotations__)


def test_an_argument_nobody_knows_is_named():
    train = kinfed.concept_shift(n_agents=4, n=10, dim=2, spread=0.0, seed=0).train
    with pytest.raises(kinfed.InputError, match="no argument 'n_feature'; the nearest is 'n_features'"):
        kinfed.personalize(train, n_feature=10)


def test_a_name_of_an_installed_package_is_known_on_the_command_line(monkeypatch):
    class Point:
        def load(self):
            kinfed.RULES["packaged"] = kinfed.RULES["local"]

    monkeypatch.setattr("kinfed.registry.entry_points", lambda group: [Point()])
    monkeypatch.delitem(kinfed.RULES, "packaged", raising=False)
    seen, app = [], typer.Typer()
    app.command()(options.settings_command(PERSONALIZE, lambda settings, json, force: seen.append(settings.rule)))
    assert "packaged" not in kinfed.RULES  # nobody is asked before it is needed
    typer.main.get_command(app).main(["d.csv", "--out", "x", "--rule", "packaged"], standalone_mode=False)
    assert seen == ["packaged"]
    del kinfed.RULES["packaged"]
