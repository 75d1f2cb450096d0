"""What a town has for installers, each thing called ours, and the commands that install it. Standard library only."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Final

from tests.towns.names import LISTED

INSTALLS: Final = {
    "git": ("d=$(mktemp -d); git clone -q https://git.{host}/ours.git $d && git -C $d log --format=%s", "from git"),
    "ssh": (
        "d=$(mktemp -d); install -m 600 $(dirname $SSL_CERT_FILE)/ssh/* $d; "
        'GIT_SSH_COMMAND="$GIT_SSH_COMMAND -i $d/key -o UserKnownHostsFile=$d/hosts" '
        "git clone -q ssh://root@ssh.{host}/ours.git $d/ours && git -C $d/ours log --format=%s",
        "from git",
    ),
    "pip": (
        "pip3 install --retries 1 --timeout 100 --index-url https://pip.{host}/simple --target t ours && "
        "PYTHONPATH=t python3 -m ours",
        "from pip",
    ),
    "npm": (
        "npm install --fetch-retries=0 --registry https://npm.{host}/ ours && node -e 'require(\"ours\")'",
        "from npm",
    ),
}
"""By the name of the program, a command that installs it, and what it prints at its good end."""
TRUSTING: Final = (
    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE",
    "npm_config_cafile",
)  # fmt: skip
"""Variables by which programs are told to trust the certificate of a town."""
_SSHD: Final = """HostKey {place}/host
AuthorizedKeysFile {place}/ssh/key.pub
StrictModes no
PermitRootLogin prohibit-password
ForceCommand git upload-pack {bare}
PidFile none
LogLevel ERROR
"""


def fill(place: Path) -> None:
    """An index of pip, a registry of npm, a repository of git and one of apt, each with something called ours.

    The repository is also served by ssh, to who has the key in `ssh`.
    """
    www = place / "www"
    for name in ("pip", "npm", "git", "apt"):
        (www / f"{name}.{LISTED}").mkdir()
    index = www / f"pip.{LISTED}/simple/ours"
    index.mkdir(parents=True)
    (index / "index.html").write_text('<a href="ours-1.0-py3-none-any.whl">ours-1.0-py3-none-any.whl</a>')
    with zipfile.ZipFile(index / "ours-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("ours.py", "print('from pip')\n")
        wheel.writestr("ours-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
        wheel.writestr("ours-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("ours-1.0.dist-info/RECORD", "ours.py,,\n")
    npm = www / f"npm.{LISTED}"
    facts = {"name": "ours", "version": "1.0.0"}
    with tarfile.open(npm / "ours-1.0.0.tgz", "w:gz") as packed:
        for name, text in {"package.json": json.dumps(facts), "index.js": "console.log('from npm')\n"}.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            packed.addfile(entry, io.BytesIO(text.encode()))
    digest = base64.b64encode(hashlib.sha512((npm / "ours-1.0.0.tgz").read_bytes()).digest()).decode()
    dist = {"tarball": f"https://npm.{LISTED}/ours-1.0.0.tgz", "integrity": f"sha512-{digest}"}
    known = {"1.0.0": {**facts, "dist": dist}}
    (npm / "ours").write_text(json.dumps({"name": "ours", "dist-tags": {"latest": "1.0.0"}, "versions": known}))
    source, bare = www / "source", www / f"git.{LISTED}/ours.git"
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (
        ["init", "-q", source],
        ["-C", source, *who, "commit", "-q", "--allow-empty", "-m", "from git"],
        ["clone", "-q", "--bare", source, bare],
        ["-C", bare, "update-server-info"],
    ):
        subprocess.run(["git", *words], check=True)
    (www / f"apt.{LISTED}/Packages").write_text("Package: ours\nVersion: 1.0\nArchitecture: all\nDescription: ours\n\n")
    (place / "ssh").mkdir()
    if shutil.which("sshd") is not None:
        _open_to_keys(place, bare)


def _open_to_keys(place: Path, bare: Path) -> None:
    keys = place / "ssh"
    for one in (place / "host", keys / "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", one], check=True)
    (keys / "hosts").write_text(f"*.{LISTED} {(place / 'host.pub').read_text()}")
    for one in keys.iterdir():
        one.chmod(0o644)
    (place / "sshd").write_text(_SSHD.format(place=place, bare=bare))
