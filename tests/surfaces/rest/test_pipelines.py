"""Documents over REST: made, changed as a whole or not at all, shown without their secrets."""

from __future__ import annotations

import json
from typing import Any

import yaml

from tests.surfaces.rest.conftest import CANARY, Asking, document


def made(client: Asking, name: str = "shop", **labels: str) -> dict[str, Any]:
    answer = client.post("/v1/pipelines", json=document(name, **labels))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_pipeline_is_made_and_seen(client: Asking) -> None:
    assert made(client)["desired"] == "running"
    answer = client.get("/v1/pipelines/shop")
    found = answer.json()
    assert found["spec"] == {key: document()[key] for key in ("metadata", "spec")}
    assert (found["version"], answer.headers["etag"]) == (1, '"1"')
    assert [each["name"] for each in client.get("/pipelines").json()] == ["shop"], "the bare path of old"


def test_a_name_that_is_taken_is_refused(client: Asking) -> None:
    made(client)
    answer = client.post("/v1/pipelines", json=document())
    assert (answer.status_code, answer.json()["code"]) == (409, "pipeline.exists")


def test_a_document_may_be_yaml(client: Asking) -> None:
    kind = {"Content-Type": "application/yaml"}
    answer = client.post("/v1/apply", content=yaml.safe_dump(document()), headers=kind)
    assert answer.json()["outcome"] == "created"
    again = client.post("/v1/apply", content=yaml.safe_dump(document()), headers=kind)
    assert (again.json()["outcome"], again.json()["pipeline"]["version"]) == ("unchanged", 1)


def test_a_patch_changes_what_it_names(client: Asking) -> None:
    made(client)
    answer = client.patch("/v1/pipelines/shop", json={"spec": {"batch": {"max_events": 7}}})
    assert answer.json()["spec"]["spec"]["batch"] == {"max_events": 7}
    client.patch("/v1/pipelines/shop", json={"spec": {"batch": None}})
    assert client.get("/v1/pipelines/shop").json()["spec"] == {key: document()[key] for key in ("metadata", "spec")}
    versions = client.get("/v1/pipelines/shop/versions").json()["items"]
    assert [(each["version"], each["cause"]) for each in versions] == [(3, "patch"), (2, "patch"), (1, "create")]


def test_a_bad_patch_changes_nothing(client: Asking) -> None:
    made(client)
    answer = client.patch("/v1/pipelines/shop", json={"spec": {"batch": {"max_evnts": 7}}})
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["hint"]) == (
        400,
        "config.unknown_key",
        "did you mean `max_events`?",
    )
    assert problem["problems"][0]["path"] == "spec.batch.max_evnts"
    assert client.get("/v1/pipelines/shop").json()["version"] == 1
    assert client.patch("/v1/pipelines/shop", json={"metadata": {"name": "b"}}).json()["code"] == "pipeline.renamed"


def test_a_stale_etag_changes_nothing(client: Asking) -> None:
    etag = {"If-Match": made(client)["etag"]}
    change = {"spec": {"batch": {"max_events": 7}}}
    assert client.patch("/v1/pipelines/shop", json=change, headers=etag).status_code == 200
    assert client.patch("/v1/pipelines/shop", json={"spec": {"batch": None}}, headers=etag).status_code == 412
    assert client.delete("/v1/pipelines/shop", headers=etag).status_code == 412
    assert client.get("/v1/pipelines/shop").json()["version"] == 2


def test_a_secret_typed_in_clear_is_write_only(client: Asking) -> None:
    content = document()
    content["spec"]["sinks"] = [
        {"type": "http", "config": {"id": "hook", "url": "http://127.0.0.1:1/x", "headers": {"X-Key": CANARY}}}
    ]
    client.post("/v1/pipelines", json=content)
    shown = client.get("/v1/pipelines/shop").json()
    assert CANARY not in json.dumps(shown)
    back = {"metadata": shown["spec"]["metadata"], "spec": shown["spec"]["spec"]}
    back["spec"]["batch"] = {"max_events": 7}
    assert client.post("/v1/apply", json=back).json()["outcome"] == "changed"
    answer = client.get("/v1/pipelines/shop")
    assert answer.json()["version"] == 2
    moved = {
        "spec": {"sinks": [{**back["spec"]["sinks"][0], "config": {**back["spec"]["sinks"][0]["config"], "id": "b"}}]}
    }
    assert client.patch("/v1/pipelines/shop", json=moved).json()["code"] == "config.masked", "nobody knows that secret"
    surfaces = ("", "/versions", "/transitions", "/checkpoints", "/schemas", "/journal/dlq")
    told = [client.get(f"/v1/pipelines/shop{each}").text for each in surfaces]
    told += [client.get("/v1/pipelines").text, client.get("/metrics").text, client.get("/readyz").text]
    told.append(client.post("/v1/plan", json=content).text)
    assert not [text for text in told if CANARY in text]


def test_a_plan_says_what_each_change_costs(client: Asking) -> None:
    made(client)
    content = document(team="pay")
    content["spec"]["batch"] = {"max_events": 7}
    content["spec"]["source"]["config"]["tables"] = ["public.a"]
    plan = client.post("/v1/plan", json=content).json()
    assert {step["path"]: step["effect"] for step in plan["steps"]} == {
        "metadata.labels.team": "live",
        "spec.source.config.tables": "re-read",
        "spec.batch": "restart",
    }
    client.patch("/v1/pipelines/shop", json={"metadata": {"labels": {"a": "b"}}})
    refused = client.post(f"/v1/apply?plan={plan['hash']}", json=content)
    assert (refused.status_code, refused.json()["code"]) == (409, "plan.outdated")
    again = client.post("/v1/plan", json=content).json()
    assert client.post(f"/v1/apply?plan={again['hash']}", json=content).json()["outcome"] == "changed"


def test_labels_choose(client: Asking) -> None:
    made(client, "a", team="pay", stage="live")
    made(client, "b", team="pay")
    made(client, "c")

    def chosen(*labels: str) -> list[str]:
        return [each["name"] for each in client.get("/v1/pipelines", params={"label": list(labels)}).json()]

    assert chosen() == ["a", "b", "c"]
    assert chosen("team:pay") == chosen("team=pay") == chosen("team") == ["a", "b"]
    assert chosen("team:pay", "stage:live") == ["a"]
    assert chosen("team:other") == []


def test_a_cursor_belongs_to_its_list(client: Asking) -> None:
    made(client)
    for number in range(3):
        client.patch("/v1/pipelines/shop", json={"spec": {"batch": {"max_events": number + 1}}})
    first = client.get("/v1/pipelines/shop/versions", params={"limit": 3}).json()
    assert [each["version"] for each in first["items"]] == [4, 3, 2]
    rest = client.get("/v1/pipelines/shop/versions", params={"limit": 3, "cursor": first["next"]}).json()
    assert ([each["version"] for each in rest["items"]], rest["next"]) == ([1], None)
    wrong = client.get("/v1/pipelines/shop/transitions", params={"cursor": first["next"]})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "request.cursor")


def test_what_is_gone_is_gone_and_may_be_made_again(client: Asking) -> None:
    made(client)
    assert client.delete("/v1/pipelines/shop").status_code == 204
    assert client.get("/v1/pipelines/shop").json()["code"] == "pipeline.missing"
    assert client.delete("/v1/pipelines/shop").status_code == 404
    assert made(client)["version"] == 3, "versions go on counting"


def test_what_it_shall_do(client: Asking) -> None:
    made(client)
    for action, desired in (("pause", "paused"), ("stop", "stopped"), ("resume", "running")):
        assert client.post(f"/v1/pipelines/shop/{action}").json()["desired"] == desired
    assert client.post("/v1/pipelines/none/pause").status_code == 404


def test_what_is_planned_says_so(client: Asking) -> None:
    made(client)
    answer = client.get("/v1/pipelines/shop/sensing/schemas")
    assert (answer.status_code, answer.json()["code"]) == (501, "feature.not_yet")


def test_a_body_that_is_none_is_refused(client: Asking) -> None:
    for body in ("", "[]", "{", "\x00", '{"metadata": 3}', "[" * 100_000):
        answer = client.post("/v1/apply", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400, body[:10]
        assert answer.headers["content-type"] == "application/problem+json"
