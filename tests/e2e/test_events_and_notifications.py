"""A run seen from outside: its events as they happen, its metrics, and the user's own notify command."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support import DEADLINE, PROGRAM, Node, wait_for


def notify_by(place, script: str, text: str = "{text}"):
    """Configure a shell script as notify command, which has `text` as its first argument; return the file `told`."""
    command = ["sh", "-c", script, "sh", text]
    place.configure(f"[notify]\ncommand = {json.dumps(command)}\n")
    return place.root / "told"


def test_events_metrics_and_a_notification_of_one_run(place):
    """Node a lands, its runner is killed once; b fails: each is an event and a metric, and the end is notified."""
    told = notify_by(place, f'{{ printf "%s|" "$1"; cat; }} >> {place.root}/told', "{event}: {text}")
    graph = place.graph(Node("a", before=place.hold("a")), Node("b", command="exit 3"))
    child = place.launch_until("a", graph)
    watcher = place.begin("events", "r1", "-f", "--json", log="events")
    place.kill_and_await("runner-a")
    numbers = _metrics(place.command("metrics").stdout)
    assert numbers["garrison_layer_up", "a", "r1", "runner"] == 1
    assert numbers["garrison_layer_lives_total", "a", "r1", "runner"] == 2
    place.release_to_end(child, "a", code=1)
    assert watcher.wait(DEADLINE) == 0, "following a run ends with it"
    seen = [json.loads(line) for line in (place.root / "events").read_text().splitlines()]
    assert len({(event["journal"], event["seq"]) for event in seen if event["journal"] != "merge-queue"}) == len(
        [event for event in seen if event["journal"] != "merge-queue"]), "each once"
    assert [event["about"] for event in seen if event["kind"] == "death"] == ["runner-a@r1"]
    assert [event["node"] for event in seen if event["kind"] == "landed"] == ["a"]
    assert any(event["kind"] == "run" and event["data"]["status"] == "failed" for event in seen)
    assert all(event["run"] == "r1" and event["at"] and event["by"] for event in seen)
    plain = place.command("events", "r1", "--kind", "death", "--since", "1h").stdout
    assert plain.count("\n") == 1
    assert "runner-a: incarnation 1 died" in plain
    assert place.command("events", "--since", "soon").returncode == 2
    assert place.command("events", "rx").returncode == 1
    word, _, body = told.read_text().partition("|")
    assert word.startswith("failed: run failed, 1 of 2 landed: b: ")
    assert json.loads(body)["event"] == "failed"
    numbers = _metrics(place.command("metrics").stdout)
    assert numbers["garrison_run_status", "failed", "r1"] == 1
    assert numbers["garrison_nodes", "landed", "r1"] == numbers["garrison_nodes", "failed", "r1"] == 1
    assert numbers["garrison_deaths_total", "r1"] == 1
    _served(place)
    place.check_failed_nodes_kept("b")


def _metrics(text):
    """Return (name, label values in alphabetical order) → value."""
    families = text_string_to_metric_families(text)
    return {(sample.name, *sorted(sample.labels.values())): sample.value for family in families
            for sample in family.samples}


def _served(place):
    """Check the same at a port of loopback; Ctrl-C ends it, a taken port is one line."""
    with subprocess.Popen([*PROGRAM, "metrics", "--serve", "0"], env=place.env, stderr=subprocess.PIPE,
                          text=True) as server:
        try:
            address = server.stderr.readline().split(" at ")[1].strip()
            numbers = _metrics(urllib.request.urlopen(address, timeout=DEADLINE).read().decode())
            assert numbers["garrison_run_status", "failed", "r1"] == 1
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(address.replace("/metrics", "/else"), timeout=DEADLINE)
            taken = place.command("metrics", "--serve", address.split(":")[2].split("/")[0])
            assert taken.returncode == 1
            assert "cannot listen on port" in taken.stderr
            assert taken.stderr.count("\n") == 1
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait() == 130


@pytest.mark.slow
def test_the_end_is_notified_though_the_launcher_is_killed_during_the_notification(place):
    told = notify_by(place, f'{place.hold("teller")}; echo "$1" >> {place.root}/told')
    child = place.launch_until("teller", place.graph(Node("b", command="exit 3")))
    child.kill()
    child.wait()
    place.release("teller")
    assert place.command("up").stdout == "r1\n"
    wait_for("it is notified", lambda: told.exists() and "run failed, 0 of 1 landed: b: " in told.read_text())
    wait_for("nothing is left", lambda: not place.living_processes())
    assert place.command("up").stdout == "", "once"
    assert place.identity("launch")["exit"] == 1


@pytest.mark.slow
def test_a_parked_guardian_is_notified_though_the_launcher_dies_before_it_tells(place):
    told = notify_by(place, f'echo "$1" >> {place.root}/told')
    place.kill_at("guardian:active", "launch:park.after", times=6, keep_going=False)
    assert place.launch(place.graph(Node("a"))).wait() == -signal.SIGKILL
    assert place.identity("guardian-crew")["status"] == "parked"
    assert place.command("up").stdout == "r1\n", place.logs()
    wait_for("it is notified", lambda: told.exists() and "guardian-crew@r1 is parked: 6 deaths" in told.read_text())
    wait_for("nothing is left", lambda: not place.living_processes())
    assert place.command("up").stdout == "", "the user mends it, and resumes"


def test_an_invalid_notify_table_is_refused_before_anything_starts(place):
    place.configure('[notify]\ncommand = "notify-send"\n')
    refused = place.launch(place.graph(Node("a")))
    assert refused.wait() == 2
    assert "config.toml:4: [notify] command='notify-send' should be a list of strings" in place.logs()
    assert wait_for("nothing was made", lambda: not (place.home / "runs").exists())
