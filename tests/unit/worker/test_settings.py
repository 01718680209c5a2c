import os
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from worker.settings import (
    EMBEDDED,
    HttpAddress,
    LogFormat,
    Privacy,
    SettingRow,
    Settings,
    SettingsError,
)

SECRET = "s3cr3t-word"


def load(**given: str) -> Settings:
    return Settings.load({f"REGATE_{name.upper()}": value for name, value in given.items()})


def row(settings: Settings, name: str) -> SettingRow:
    return next(row for row in settings.rows() if row.name == name)


def env_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / ".env"
    path.write_text(text, encoding="utf-8")
    return path


def problem(**given: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        load(**given)
    return caught.value


# --- Defaults -----------------------------------------------------------------------------------------------


def test_everything_has_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.load({})
    data = tmp_path / ".regate"
    expected = Settings(
        data_dir=data,
        database_url=f"sqlite:///{data}/regate.db",
        broker_url=EMBEDDED,
        http=HttpAddress(host="127.0.0.1", port=8321),
        keys_file=data / "keys.json",
        tools=(),
        max_runs=1000,
        lease_seconds=30.0,
        sweep_seconds=5.0,
        retry_seconds=(30.0, 60.0, 120.0),
        files_root=None,
        beat_file=None,
        log=LogFormat.CONSOLE,
        privacy=Privacy.METADATA,
        provider_keys={},
        sources=settings.sources,
    )
    assert expected == settings
    assert {"default"} == {row.source for row in settings.rows()}


def test_database_and_keys_move_with_the_data_folder(tmp_path: Path) -> None:
    settings = load(data_dir=str(tmp_path))
    assert f"sqlite:///{tmp_path}/regate.db" == settings.database_url
    assert tmp_path / "keys.json" == settings.keys_file


def test_a_relative_path_becomes_absolute_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tmp_path / "docs" == load(files_root="docs").files_root


def test_a_tilde_is_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert Path("/home/somebody/docs") == load(files_root="~/docs").files_root


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings.load({}).max_runs = 5  # type: ignore[misc]


def test_every_setting_has_a_row() -> None:
    names = {field.name for field in fields(Settings)} - {"provider_keys", "sources"}
    assert names == {row.name.removeprefix("REGATE_").lower() for row in Settings.load({}).rows()}


# --- Sources ------------------------------------------------------------------------------------------------


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = env_file(tmp_path, "REGATE_MAX_RUNS=1\nREGATE_SWEEP_SECONDS=1\nREGATE_LEASE_SECONDS=1\n")
    settings = Settings.load({"REGATE_MAX_RUNS": "2", "REGATE_SWEEP_SECONDS": "2"}, file, {"REGATE_MAX_RUNS": "3"})
    assert (3, 2.0, 1.0) == (settings.max_runs, settings.sweep_seconds, settings.lease_seconds)
    assert "flag" == row(settings, "REGATE_MAX_RUNS").source
    assert "environment" == row(settings, "REGATE_SWEEP_SECONDS").source
    assert ".env" == row(settings, "REGATE_LEASE_SECONDS").source


def test_an_empty_variable_switches_off_what_the_file_switches_on(tmp_path: Path) -> None:
    file = env_file(tmp_path, "REGATE_FILES_ROOT=/srv\nREGATE_MAX_RUNS=5\n")
    settings = Settings.load({"REGATE_FILES_ROOT": "", "REGATE_MAX_RUNS": " "}, file)
    assert settings.files_root is None
    assert 1000 == settings.max_runs


def test_a_flag_that_is_no_setting_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^REGATE_PORT is not a setting$"):
        Settings.load({}, overrides={"REGATE_PORT": "1"})


def test_the_file_is_not_interpolated_and_the_environment_stays_as_it_is(tmp_path: Path) -> None:
    file = env_file(tmp_path, f"REGATE_KEYS_FILE='{tmp_path}/$HOME-${{HOME}}'\nSOMETHING_ELSE=1\n")
    before = dict(os.environ)
    settings = Settings.load({"HOME": "/home/x"}, file)
    assert tmp_path / "$HOME-${HOME}" == settings.keys_file
    assert before == dict(os.environ)


def test_a_missing_file_is_an_empty_one(tmp_path: Path) -> None:
    assert Settings.load({}) == Settings.load({}, tmp_path / ".env")


def test_a_line_that_cannot_be_read_is_named_without_its_text(tmp_path: Path) -> None:
    file = env_file(tmp_path, f'REGATE_MAX_RUNS=1\nREGATE_KEY_A="{SECRET}\n')
    with pytest.raises(SettingsError, match=r"^\.env line 2 cannot be read$"):
        Settings.load({}, file)


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / ".env"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    with pytest.raises(SettingsError, match=r"^\.env cannot be read"):
        Settings.load({}, file)


# --- Provider keys ------------------------------------------------------------------------------------------


def test_provider_keys_come_from_the_environment_and_the_file(tmp_path: Path) -> None:
    file = env_file(tmp_path, "REGATE_KEY_A=a-file\nREGATE_KEY_B=b-file\nREGATE_KEY_C=c-file\n")
    settings = Settings.load({"REGATE_KEY_A": "a-env", "REGATE_KEY_B": ""}, file)
    assert {"REGATE_KEY_A": "a-env", "REGATE_KEY_C": "c-file"} == dict(settings.provider_keys)


def test_a_provider_key_is_shown_by_name_only(tmp_path: Path) -> None:
    settings = load(key_house=SECRET)
    expected = SettingRow(name="REGATE_KEY_HOUSE", value="***", source="environment", secret=True)
    assert expected == row(settings, "REGATE_KEY_HOUSE")
    assert SECRET not in repr(settings)


# --- Secrets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://user@host", "redis://user@host"),
        (f"redis://:{SECRET}@host:6379/0", "redis://:***@host:6379/0"),
        (f"rediss://user:{SECRET}@[::1]:6379/0", "rediss://user:***@[::1]:6379/0"),
        (f"redis://user:a@b:{SECRET}@host", "redis://user:***@host"),
        (f"redis://host?password={SECRET}@x&db=1", "redis://host?password=***&db=1"),
        (f"unix:///run/valkey.sock?db=0&Password={SECRET}", "unix:///run/valkey.sock?db=0&Password=***"),
    ],
)
def test_passwords_in_urls_are_masked(url: str, shown: str) -> None:
    settings = load(broker_url=url)
    expected = SettingRow(name="REGATE_BROKER_URL", value=shown, source="environment", secret=True)
    assert expected == row(settings, "REGATE_BROKER_URL")
    assert url == settings.broker_url
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    "name",
    ["database_url", "broker_url", "http", "max_runs", "lease_seconds", "retry_seconds", "tools", "log"],
)
def test_an_error_names_the_setting_and_never_the_value(name: str) -> None:
    error = problem(**{name: f"x://user:{SECRET}/@host"})
    assert f"REGATE_{name.upper()}" == error.name
    assert SECRET not in str(error)
    assert error.__cause__ is None
    assert error.__suppress_context__


# --- Values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["sqlite:///a.db", "sqlite:////a/b.db", "postgresql://u:p@h/db", "postgresql+asyncpg://u:p@h:5432/db"],
)
def test_database_urls_that_are_taken_as_they_are(url: str) -> None:
    assert url == load(database_url=url).database_url


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///:memory:", "sqlite:///f?mode=memory", "mysql://h/db", "a.db", "postgresql://u:p/@h"],
)
def test_database_urls_that_are_refused(url: str) -> None:
    assert "REGATE_DATABASE_URL" == problem(database_url=url).name


@pytest.mark.parametrize("url", [EMBEDDED, "redis://h", "rediss://h:1/0", "unix:///run/x.sock?db=0"])
def test_broker_urls_that_are_taken_as_they_are(url: str) -> None:
    assert url == load(broker_url=url).broker_url


@pytest.mark.parametrize("url", ["Embedded!", "http://h", "amqp://h", "redis", "redis://:a/b@h:x"])
def test_broker_urls_that_are_refused(url: str) -> None:
    assert "REGATE_BROKER_URL" == problem(broker_url=url).name


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("localhost:80", "localhost", 80), ("[::1]:0", "::1", 0), ("0.0.0.0:65535", "0.0.0.0", 65535)],
)
def test_http_addresses(text: str, host: str, port: int) -> None:
    address = load(http=text).http
    assert HttpAddress(host=host, port=port) == address
    assert text == str(address)


@pytest.mark.parametrize("text", ["8321", ":8321", "h:", "h:65536", "h:-1", "::1:80", "http://h:80", "h:٨"])
def test_http_addresses_that_are_refused(text: str) -> None:
    assert "REGATE_HTTP" == problem(http=text).name


def test_tools_are_modules_in_their_order_each_once() -> None:
    assert ("shop.tools", "crm") == load(tools=" shop.tools, crm ,shop.tools").tools


@pytest.mark.parametrize("text", ["a,,b", "a b", "a.", "a/b.py", "1a"])
def test_tools_that_are_no_modules_are_refused(text: str) -> None:
    assert "REGATE_TOOLS" == problem(tools=text).name


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "1e3", "1_000", "many", "9" * 5000])
def test_max_runs_is_a_whole_positive_number(text: str) -> None:
    assert "REGATE_MAX_RUNS" == problem(max_runs=text).name


@pytest.mark.parametrize(("text", "seconds"), [("1", 1.0), ("1.5", 1.5), ("604800", 604_800.0)])
def test_a_lease_may_have_fractions(text: str, seconds: float) -> None:
    assert seconds == load(lease_seconds=text).lease_seconds


@pytest.mark.parametrize("text", ["0.999", "0", "-30", "nan", "inf", "1e3", "604801", "9" * 5000])
def test_a_lease_is_at_least_a_second_and_finite(text: str) -> None:
    assert "REGATE_LEASE_SECONDS" == problem(lease_seconds=text).name


@pytest.mark.parametrize("text", ["0", "0.0", "-5", "nan", "infinity", "soon"])
def test_a_sweep_takes_positive_seconds(text: str) -> None:
    assert "REGATE_SWEEP_SECONDS" == problem(sweep_seconds=text).name


def test_retries_are_as_many_as_there_are_waits() -> None:
    settings = load(retry_seconds="0.5, 3")
    assert (0.5, 3.0) == settings.retry_seconds
    assert "0.5,3" == row(settings, "REGATE_RETRY_SECONDS").value


@pytest.mark.parametrize("text", ["30,", "30,0", "30,nan", "30;60", ","])
def test_waits_that_are_refused(text: str) -> None:
    assert "REGATE_RETRY_SECONDS" == problem(retry_seconds=text).name


def test_words_are_taken_from_their_lists() -> None:
    settings = load(log="json", privacy="none")
    assert (LogFormat.JSON, Privacy.NONE) == (settings.log, settings.privacy)


def test_a_word_that_is_not_in_the_list_is_refused_with_the_list() -> None:
    assert "must be one of console, json" == problem(log="JSON").problem
    assert "must be one of none, metadata, redacted, full" == problem(privacy="all").problem


def test_a_question_mark_cannot_be_in_the_folder_of_the_default_database() -> None:
    assert "REGATE_DATA_DIR" == problem(data_dir="/tmp/what?").name


def test_the_home_of_nobody_is_refused() -> None:
    assert "REGATE_FILES_ROOT" == problem(files_root="~nobody-of-that-name/x").name
