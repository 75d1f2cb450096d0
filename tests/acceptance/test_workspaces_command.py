"""`shellback workspaces`, and an agent whose conversations work in several of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy as sa

from shellback.exec.core.runner import make_workspace
from shellback.storage.tables import conversations
from shellback.wiring.spaces import path_of
from shellback.work.queue.mailbox import workspace_of
from tests import filetrees
from tests.commands import assert_refused, facts, shellback, told
from tests.stage import Stage, stage, staged

place = staged(scope="function")


@pytest.fixture
def policy(place: Stage) -> Path:
    """An operator's file with a comment and a rule."""
    file = place.home / "shellback.toml"
    file.write_text('# mine\n[[rules]]\neffect = "deny"\nprefix = ["git", "push"]\n')
    file.chmod(0o640)
    return file


def test_workspaces_are_added_listed_and_removed_and_the_rest_of_the_file_stays(place: Stage, policy: Path) -> None:
    before = policy.read_text()
    web, api = place.root / "web", place.root / "with 'quotes\" and \\"
    assert told(place, "workspaces", "add", "web", str(web), "--make").stdout == f"added web: {web}\n"
    assert facts(told(place, "workspaces", "add", "api", str(api), "--make", "--json"))["added"] is True
    assert facts(told(place, "workspaces", "add", "web", f"{web}/../web", "--json"))["added"] is False
    listed = facts(told(place, "workspaces", "list", "--json"))
    assert [(one["name"], one["path"], one["problem"]) for one in listed] == [
        ("default", str(place.workspace), None),
        ("api", str(api), None),
        ("web", str(web), None),
    ]
    assert policy.stat().st_mode & 0o777 == 0o640
    assert told(place, "policy", "check", "git push").stdout.count('"deny"') == 1
    for name in ("web", "api"):
        assert "its files stay" in told(place, "workspaces", "remove", name).stdout
    assert policy.read_text() == f"{before}\n[workspaces]\n"
    assert web.is_dir()
    assert_refused(told(place, "workspaces", "remove", "web"), "no workspace 'web'")


def test_what_cannot_be_a_workspace_is_refused_with_its_cause_and_nothing_is_written(place: Stage) -> None:
    root, web = place.root, place.root / "web"
    facts(told(place, "workspaces", "add", "web", str(web), "--make", "--json"))
    file = place.home / "shellback.toml"
    before = file.read_text()
    inside, link, plain, closed = web / "inside", root / "link", root / "plain", root / "closed"
    inside.mkdir()
    link.symlink_to(web)
    plain.write_text("")
    closed.mkdir(mode=0o700)
    for name, path, cause in (
        ("default", root / "x", "is no name for a workspace"),
        ("a b", root / "x", "is no name for a workspace"),
        ("../x", root / "x", "is no name for a workspace"),
        ("x\x1b[31m", root / "x", "is no name for a workspace"),
        ("x" * 41, root / "x", "is no name for a workspace"),
        ("x", root / "missing", "is no directory: create it, or give --make"),
        ("x", plain, "is no directory"),
        ("x", web, "is workspace web already"),
        ("x", link, "is workspace web already"),
        ("x", inside, f"workspace web ({web}) contains it"),
        ("x", place.workspace, "is workspace default already"),
        ("x", place.workspace / "y", f"workspace default ({place.workspace}) contains it"),
        ("x", root, f"workspace default ({place.workspace}) is in it"),
        ("x", place.home, "is hidden from sandboxes"),
        ("x", Path("/"), "/ is too much of the machine"),
        ("x", Path("/usr/lib"), "sandboxes have a /usr of their own"),
        ("web", root / "other", f"workspace web is {web}, and its conversations stay there: remove it first"),
    ):
        assert_refused(told(place, "workspaces", "add", name, str(path)), cause)
    if os.geteuid() == 0:
        assert_refused(shellback(place, "workspaces", "add", "x", str(closed)), "no write permission")
    assert file.read_text() == before


def test_a_file_that_names_workspaces_in_a_wrong_way_is_refused_with_its_line(place: Stage) -> None:
    file, web = place.home / "shellback.toml", place.root / "web"
    web.mkdir()
    for text, cause in (
        (f'[workspaces]\nweb = "{web}"\nhere = "."\n', ":3: here: '.' is not absolute"),
        (f'[workspaces]\n"a/b" = "{web}"\n', ":2: a/b: no name of a workspace"),
        ("[workspaces]\nweb = 3\n", ":2: web: it is 3"),
        ('workspaces = "x"\n', "write a table"),
        (f'[workspaces]\nweb = "{web}"\nalso = "{web}"\n', "is workspace web already"),
    ):
        file.write_text(text)
        file.chmod(0o600)
        assert_refused(shellback(place, "policy", "explain", "ls"), cause)
    assert_refused(shellback(place, "worker"), "is workspace web already")
    file.write_text(f'workspaces = {{ web = "{web}" }}\n')
    told(place, "workspaces", "list")
    assert_refused(told(place, "workspaces", "remove", "web"), "change its table [workspaces] yourself")


def test_conversations_of_an_agent_work_in_their_own_workspaces_and_say_so() -> None:
    with stage() as place:
        web = place.root / "web"
        facts(told(place, "workspaces", "add", "web", str(web), "--make", "--json"))
        place.hire()
        assert_refused(shellback(place, "send", "-c", "shop", "-w", "nowhere", "hi"), "there is no workspace 'nowhere'")
        for talk, more in (("shop", ("-w", "web")), ("plain", ())):
            facts(shellback(place, "send", "-c", talk, *more, "$ echo nonce > here; pwd", "--json"))
            request = place.pending(talk)
            shown = told(place, "approvals", "show", request.id).stdout
            assert (f"workspace: web ({web})" in shown) is (talk == "shop")
            assert "WORKSPACE" in told(place, "approvals", "list").stdout or talk == "plain"
            place.decide(request)
            place.until("the answer", lambda talk=talk: place.answers(conversation=talk))
        assert (web / "here").exists()
        assert (place.workspace / "here").exists()
        assert str(web) in place.answers(conversation="shop")[-1]
        refused = shellback(place, "send", "-c", "shop", "--workspace", "default", "hi")
        assert_refused(refused, f"conversation shop works in workspace web ({web}) since its start", "--conversation")
        listed = {one["id"]: one["workspace"] for one in facts(told(place, "conversations", "list", "--json"))}
        assert listed == {"shop": "web", "plain": "default"}
        assert "WORKSPACE" in told(place, "conversations", "list").stdout
        assert "workspace web" in told(place, "conversations", "show", "shop").stdout
        assert "WORKSPACE" in told(place, "ps", "--all").stdout
        assert "shop  in web" in told(place, "audit", "-e", "used").stdout
        counts = {one["name"]: one["conversations"] for one in facts(told(place, "workspaces", "list", "--json"))}
        assert counts == {"default": 1, "web": 1}

        assert_refused(told(place, "workspaces", "remove", "web"), "1 conversation work in web", "--force")
        facts(told(place, "workspaces", "remove", "web", "--force", "--json"))
        assert "not configured any more" in told(place, "workspaces", "list").stdout
        item = place.send("$ touch there", "shop")
        assert "workspace web, in which this conversation works, is not configured any more" in place.answer(item)
        assert place.requests() == []
        for there in (web, place.workspace):
            assert not (there / "there").exists()
        # A conversation in another workspace does not notice.
        item = place.send("$ touch there", "plain")
        place.approve("plain")
        place.answer(item)
        assert (place.workspace / "there").exists()


def test_a_workspace_with_directories_for_conversations_is_added_listed_and_cleaned(place: Stage) -> None:
    root, source = place.root / "work", place.root / "source"
    source.mkdir()
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        filetrees.git(*words, cwd=source)
    filetrees.give(source)
    add = ("workspaces", "add", "api", str(root), "--make", "--per-conversation")
    told(place, *add, "--from", "clone", "--source", str(source))
    again = told(place, *add, "--from", "clone", "--source", str(source), "--json")
    assert facts(again)["added"] is False
    assert_refused(told(place, *add), "workspace api is")
    written = (
        f'[workspaces.api]\npath = "{root}"\nper_conversation = true\n'
        f'from = "clone"\nsource = "{source}"\nkeep = "work"\n'
    )
    assert written in (place.home / "shellback.toml").read_text()
    for talk in ("idle", "worked"):
        facts(told(place, "send", "-c", talk, "-w", "api", "hi", "--json"))
        found = place.read(workspace_of, talk)
        assert found is not None
        path_of(place.settings, found)
        assert f"workspace api ({root}/{talk})" in told(place, "conversations", "show", talk).stdout
    (root / "worked" / "new").write_text("work")
    (root / "mine").mkdir()
    assert "without a conversation" not in told(place, "workspaces", "list").stdout
    place.change(sa.delete(conversations))
    shown = told(place, "workspaces", "list").stdout
    assert f"clone {source}" in shown
    assert "api: without a conversation: idle, worked: `shellback workspaces clean api` removes them" in shown
    (listed,) = (one for one in facts(told(place, "workspaces", "list", "--json")) if one["name"] == "api")
    assert (listed["from"], listed["keep"], listed["unowned"]) == ("clone", "work", ["idle", "worked"])

    assert_refused(told(place, "workspaces", "clean", "api", "--force"), "--force needs the names")
    assert_refused(told(place, "workspaces", "clean", "api", "../home"), "is no directory without a conversation")
    assert_refused(told(place, "workspaces", "clean", "default"), "no workspace 'default' with a directory for each")
    said = told(place, "workspaces", "clean", "api").stdout
    assert said.splitlines() == [
        f"{root}/idle removed",
        f"{root}/worked stays: it has changes that are not committed",
    ]
    assert facts(told(place, "workspaces", "clean", "api", "worked", "--force", "--json"))[0]["removed"] is True
    assert told(place, "workspaces", "clean", "api").stdout == "nothing to remove\n"
    assert_refused(
        told(place, "workspaces", "clean", "api", "mine", "--force"), "is no directory without a conversation"
    )
    assert (root / "mine").is_dir()
    facts(told(place, "workspaces", "remove", "api", "--json"))
    assert "api" not in (place.home / "shellback.toml").read_text()


def test_a_table_of_a_workspace_is_read_and_removed_and_its_mistakes_are_named_with_their_lines(place: Stage) -> None:
    file, root, source = place.home / "shellback.toml", place.root / "work", place.root / "source"
    root.mkdir()
    source.mkdir()
    head = "[workspaces]\n\n[workspaces.api]\n"
    for text, cause in (
        ('path = "here"\n', ":4: path: 'here' is not absolute"),
        ("per_conversation = true\n", ":3: api: it has no path"),
        (f'path = "{root}"\nper_conversation = 1\n', ":5: per_conversation: it is 1"),
        (f'path = "{root}"\nkeep = "never"\n', ":5: keep: conversations share this directory"),
        (f'path = "{root}"\nper_conversation = true\nform = "clone"\n', ":6: form: no such key"),
        (
            f'path = "{root}"\nper_conversation = true\nfrom = "svn"\n',
            ":6: from: it is 'svn': write one of",
        ),
        (f'path = "{root}"\nper_conversation = true\nfrom = "clone"\n', ":6: from: there is no source"),
        (f'path = "{root}"\nper_conversation = true\nsource = "{source}"\n', ":6: source: nothing is made from it"),
        (f'path = "{root}"\nper_conversation = true\nkeep = "yes"\n', ":6: keep: it is 'yes'"),
    ):
        file.write_text(head + text)
        file.chmod(0o600)
        assert_refused(shellback(place, "workspaces", "list"), cause)
    for inline in ('api = { path = "/x", form = 1 }', "api = 3"):
        file.write_text(f"[workspaces]\n{inline}\n")
        assert_refused(shellback(place, "workspaces", "list"), ":2: ")
    more = f'path = "{root}"\nper_conversation = true\nfrom = "copy"\nsource = "{source}"\n'
    file.write_text(f"{head}{more}\n[tiers]\nstrict = true\n")
    assert facts(told(place, "workspaces", "list", "--json"))[1]["source"] == str(source)
    assert_refused(told(place, "workspaces", "add", "two", str(root)), "is workspace api already")
    assert_refused(told(place, "workspaces", "add", "two", str(root / "talk")), f"workspace api ({root}) contains it")
    told(place, "workspaces", "remove", "api")
    assert file.read_text() == "[workspaces]\n\n[tiers]\nstrict = true\n"


def test_add_gives_a_workspace_settings_of_its_own_or_says_why_it_may_not_have_them(place: Stage) -> None:
    file, site = place.home / "shellback.toml", place.root / "site"
    file.write_text(
        '[network]\nhosts = ["example.org"]\n[credentials.key]\nenv = "KEY"\nhosts = ["example.org"]\n'
        'workspaces = ["default"]\n'
    )
    file.chmod(0o600)
    before = file.read_text()
    add = ("workspaces", "add", "site", str(site), "--make")
    listed = ("--network", "list")
    for options, cause in (
        (("--backend", "bwrap"), "workspace site: BACKEND='bwrap' is not allowed"),
        (("--sandbox-processes", "1"), "workspace site: SANDBOX_PROCESSES='1' is not allowed"),
        (("--backend", "auto"), "BACKEND=auto is not allowed here"),
        (("--host", "example.org"), "hosts has no effect with NETWORK=off"),
        ((*listed, "--host", "a b"), "hosts: "),
        ((*listed, "--private", "10"), "private: '10' is no range"),
        (("--secret-paths", str(site)), f"{site} is hidden from sandboxes"),
        (("--secret-paths", "key"), "workspace site: SECRET_PATHS='key' is not allowed"),
    ):
        assert_refused(shellback(place, *add, *options), cause)
        assert file.read_text() == before
        assert not site.exists()
    options = (*listed, "--host", "example.org", "--host", "*.example.net", "--private", "10.0.0.0/8")
    more = ("--foreground-timeout", "7.5", "--turn-max-requests", "9", "--trust-classifier", "true", "--agent", 'a:"b"')
    said = told(place, *add, *options, *more).stdout
    assert "its own settings: " in said
    assert "they hold in workers and servers that start from now on" in said
    assert file.read_text() == before + (
        f'\n[workspaces.site]\npath = "{site}"\nagent = "a:\\"b\\""\nnetwork = "list"\ntrust_classifier = true\n'
        'foreground_timeout = 7.5\nturn_max_requests = 9\nhosts = ["example.org", "*.example.net"]\n'
        'private = ["10.0.0.0/8"]\n'
    )
    assert facts(told(place, *add, "--json"))["added"] is False
    assert facts(told(place, *add, *options, *more, "--json"))["added"] is False
    assert_refused(told(place, *add, "--turn-max-requests", "10"), "there with other settings")
    (one,) = (one for one in facts(told(place, "workspaces", "list", "--json")) if one["name"] == "site")
    assert (one["own"]["turn_max_requests"], one["own"]["credentials"], one["problem"]) == (9, [], None)
    file.write_text(file.read_text().replace("= 9", "= 0"))
    assert "TURN_MAX_REQUESTS='0' is not allowed" in told(place, "workspaces", "list").stdout
    told(place, "workspaces", "remove", "site")
    assert file.read_text() == before + "\n"


def test_what_add_has_made_goes_if_it_refuses_and_what_was_there_stays(place: Stage) -> None:
    made, there = place.root / "made", place.root / "there"
    make_workspace(there)
    for options, cause in (
        (("--from", "clone"), "add --per-conversation"),
        (("--per-conversation", "--from", "clone"), "--source goes with --from"),
        (("--per-conversation", "--source", str(place.root)), "--source goes with --from"),
        (("--per-conversation", "--from", "clone", "--source", str(place.home)), "cannot be given to agents"),
        (("--per-conversation", "--from", "clone", "--source", str(place.root / "none")), "is missing or no directory"),
    ):
        assert_refused(told(place, "workspaces", "add", "x", str(made), "--make", *options), cause)
    file = place.home / "shellback.toml"
    file.write_text("workspaces = {}\n")
    file.chmod(0o600)
    for path in (made, there):
        assert_refused(told(place, "workspaces", "add", "x", str(path), "--make"), "change its table [workspaces]")
    assert not made.exists()
    assert there.is_dir()
