"""Programs that tell facts of the system, its processes and users."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Final

from shellback.exec.policy.classify.model import Asks, Tier
from shellback.exec.policy.classify.options import Call, Invocation, Judge, Kind, Program, is_number, program, words

_PS_LONG: Final = frozenset(
    {"--forest", "--no-headers", "--no-heading", "--headers", "--deselect", "--help", "--version"}
)
_PS_LISTS: Final = re.compile(r"(--(pid|ppid|sid|sort|quick-pid)|-[pqs])=?([\w,+%-]*)")
_PS_FIELDS: Final = words(
    "pid ppid user uid group gid comm args cmd command etime etimes time stat state s %cpu %mem pcpu pmem rss rssize"
    " vsz"
    " vsize nice ni pri priority tty tt tname start start_time lstart bsdstart bsdtime nlwp thcount wchan psr pgid"
    " pgrp sid"
    " sess session ruser ruid rgroup rgid euser euid egroup egid fname ucmd ucomm class cls policy rtprio lwp tid"
    " spid sz"
    " size cputime c f flag flags maj_flt majflt min_flt minflt drs trs cgroup ns"
)


def _ps(call: Call) -> None:
    """Not BSD `e`, which shows environments; nor what has `-e` read the BSD way, as `-u NAME` and conflicts have."""
    _no_conflict(call.texts)
    waiting = list(reversed(call.texts))
    while waiting:
        text = waiting.pop()
        if text in _PS_LONG or re.fullmatch(r"-[AaedfFljLMNTwyHZ]+|-auxw{0,2}f?|[afjlmnruSsTvwxcghXLH]+", text):
            continue
        if re.fullmatch(r"[0-9]+(,[0-9]+)*", text):
            continue
        listed = _PS_LISTS.fullmatch(text)
        if listed:
            value = listed[3] if "=" in text or listed[3] else _value(waiting, "ps", text)
            if re.fullmatch(r"[\w,+%-]+", value):
                continue
        fields = re.fullmatch(r"(?:-[eAaf]*o|[axf]*o|--format)=?([\w,=%]*)", text)
        if fields:
            value = fields[1] or _value(waiting, "ps", text)
            if all(field.partition("=")[0] in _PS_FIELDS for field in re.split(r"[, ]", value)):
                continue
        if text in {"-C", "-u", "-U"} and re.fullmatch(
            r"root|[0-9]+" if text != "-C" else r"[\w.-]+", _value(waiting, "ps", text)
        ):
            continue
        raise Asks(f"ps {text} is not known to only read")


def _no_conflict(texts: tuple[str, ...]) -> None:
    letters = {letter for text in texts if re.fullmatch(r"-[A-Za-z]+", text) for letter in text[1:]}
    if "e" not in letters:
        return
    formats = "o" in letters or any(text.startswith("--format") for text in texts)
    if "--forest" in texts:
        letters.add("H")
    threads = letters & set("THL")
    old = any(
        re.match("[A-Za-z]", text) and not re.fullmatch(r"-[eAaf]*o|-[CuUpsq]|--[a-z-]+", before)
        for before, text in itertools.pairwise(("", *texts))
    )
    if (formats and letters & set("fFljyHMZ")) or len(threads) > 1 or old:
        raise Asks("ps takes -e for an option that shows environments if other options conflict")


def _value(waiting: list[str], program_name: str, option: str) -> str:
    if not waiting:
        raise Asks(f"{program_name} {option} lacks its value")
    return waiting.pop()


def _date(found: Invocation) -> None:
    for operand in found.operands:
        if not operand.startswith("+"):
            raise Asks("date would set the clock", Tier.ADMIN)


_SS_WORDS: Final = words(
    "state exclude connected synchronized bucket big all established syn-sent syn-recv fin-wait-1 fin-wait-2 time-wait"
    " closed close-wait last-ack listening listen closing sport dport src dst and or not ( ) ! & | = == != eq neq gt lt"
    " ge le > < >= <="
)
_SS_ADDRESS: Final = re.compile(
    r"[0-9.]+(/[0-9]+)?(:[a-z0-9*]+)?|:[a-z0-9*]+|\[[0-9a-fA-F:]+\](/[0-9]+)?(:[a-z0-9*]+)?"
)


def _ss(found: Invocation) -> None:
    for word in " ".join(found.operands).split():
        if word not in _SS_WORDS and not _SS_ADDRESS.fullmatch(word):
            raise Asks(f"ss may ask name servers for {word}")


def _tput(found: Invocation) -> None:
    if not all(re.fullmatch(r"[\w.+-]+", name) for name in found.values("-T")):
        raise Asks("tput takes a terminal's description from a file")
    if not found.operands or {"init", "reset"} & set(found.operands):
        raise Asks("tput init and tput reset run a program of the terminal's description")


def _netstat(found: Invocation) -> None:
    if not found.given("-n", "--numeric", "-r", "-i", "--route", "--interfaces") or not found.given("-n", "--numeric"):
        raise Asks("netstat without -n asks name servers")


def _sysctl(found: Invocation) -> None:
    for operand in found.operands:
        # Dots and slashes lead down in /proc/sys, and two of them up.
        if not re.fullmatch(r"[\w-]+([./][\w-]+)*[./]?", operand):
            raise Asks("sysctl would change the kernel, or read another file", Tier.ADMIN)


def _counted(found: Invocation) -> None:
    if len(found.operands) == 1 or (found.operands and not all(is_number(operand) for operand in found.operands)):
        raise Asks(f"{found.name} with a delay and no count never ends")


def _ip(call: Call) -> None:
    """Only what shows."""
    texts = [
        text
        for text in call.texts
        if not re.fullmatch(r"-(4|6|s|d|o|j|p|br|brief|c|color|json|pretty|details|stats|N)", text)
    ]
    if not texts or texts[0] not in _IP_OBJECTS or any(text.startswith("-") for text in texts):
        raise Asks(f"ip {' '.join(texts[:1])} is not known to only read")
    if len(texts) > 1 and texts[1] not in {"show", "list", "ls", "s"}:
        raise Asks(f"ip {texts[0]} {texts[1]} is not known to only read", Tier.ADMIN)
    if not all(re.fullmatch(r"dev|up|scope|[\w.:@]+", text) for text in texts[2:]):
        raise Asks("ip is given what is not known")


_IP_OBJECTS: Final = words("a addr address l link r route n neigh neighbor neighbour ru rule m maddr")


def _stty(call: Call) -> None:
    if call.texts not in {("-a",), ("size",), ("-g",), ("--all",), ()}:
        raise Asks("stty would change the terminal")


def _mount(call: Call) -> None:
    if call.texts not in {(), ("-l",)}:
        raise Asks(f"{call.name} changes what the system has", Tier.ADMIN)


def _hostname(call: Call) -> None:
    """Without a name, and without what asks a name server."""
    if call.texts not in {(), ("-s",), ("--short",), ("-I",), ("--all-ip-addresses",)}:
        raise Asks("hostname would set the name, or ask a name server", Tier.ADMIN)


def _ifconfig(call: Call) -> None:
    if call.texts not in {(), ("-a",), ("-s",)} and not (len(call.texts) == 1 and re.fullmatch(r"\w+", call.texts[0])):
        raise Asks("ifconfig would change an interface", Tier.ADMIN)


_NAMES: Final = Kind.TEXT

SYSTEM: Final[Mapping[str, Program | Judge]] = {
    "ps": _ps,
    # Not -s, -f, --set, --file.
    "date": program(
        "-uR --utc --universal --rfc-email --rfc-2822 --debug --resolution",
        text="-d --date --rfc-3339",
        read="-r --reference",
        maybe="-I --iso-8601",
        operands=_NAMES,
        check=_date,
    ),
    "uname": program(
        "-asnrvmpio --all --kernel-name --nodename --kernel-release --kernel-version --machine --processor"
        " --hardware-platform --operating-system",
        most=0,
    ),
    "hostname": _hostname,
    "uptime": program("-ps --pretty --since", most=0),
    "whoami": program("", most=0),
    "id": program("-agGnruzZ --group --groups --name --real --user --zero --context", operands=_NAMES),
    "groups": program("", operands=_NAMES),
    "users": program("", most=0),
    "who": program(
        "-abdHlmpqrstTuw --all --boot --dead --heading --login --mesg --message --writable --count --process"
        " --runlevel"
        " --short --time --users",
        most=0,
    ),
    "w": program("-hsfiop --no-header --short --from", operands=_NAMES),
    "logname": program("", most=0),
    "tty": program("-s --silent --quiet", most=0),
    "arch": program("", most=0),
    "hostid": program("", most=0),
    "nproc": program("--all", number="--ignore", most=0),
    # Not -s without -c: it never ends.
    "free": program(
        "-bkmghltvw --bytes --kibi --mebi --gibi --tebi --kilo --mega --giga --human --lohi --line --total --wide --si"
        " --committed",
        most=0,
    ),
    "lscpu": program(
        "-abcBxyp --all --online --offline --bytes --hex --physical --json -J --caches -C",
        maybe="-eC --extended --parse --caches",
        most=0,
    ),
    "lsmem": program("-abJnPr --all --bytes --json --noheadings --pairs --raw", text="-o --output", most=0),
    "lsblk": program(
        "-abdDefiJlmnOpPrStTz --all --bytes --nodeps --discard --fs --ascii --json --list --perms --noheadings"
        " --output-all"
        " --paths --pairs --raw --scsi --topology",
        text="-oeIxwE --output --exclude --include --sort",
        maybe="-TM --tree",
        most=0,
    ),
    "lsmod": program("", most=0),
    "lspci": program("-nvkmtDbxP", most=0),
    "lsusb": program("-tv", most=0),
    "findmnt": program(
        "-aAbcDefiJklnPrsuv --all --bytes --df --fstab --mtab --kernel --json --list --noheadings --pairs --raw --real"
        " --pseudo --submounts",
        text="-oStOT --output --source --types --options --target",
        operands=_NAMES,
    ),
    "vmstat": program(
        "-afmnswtd --active --forks --slabs --one-header --stats --wide --timestamp", operands=_NAMES, check=_counted
    ),
    "locale": program("-akcm --all-locales --category-name --keyword-name --charmaps", operands=_NAMES),
    "getconf": program("-a", operands=_NAMES),
    "cal": program(
        "-13smjyYwv --one --three --sunday --monday --julian --year --twelve --week",
        number="-nAB --months",
        operands=_NAMES,
        maybe="--color",
    ),
    "ncal": program("-1356hjJpwybMSCe", number="-AB", text="-mds", operands=_NAMES),
    "tput": program("", text="-T", operands=_NAMES, most=3, check=_tput),
    "stty": _stty,
    "mount": _mount,
    "sysctl": program("-aAxnNbeq --all --names --values --ignore --quiet --binary", operands=_NAMES, check=_sysctl),
    "pgrep": program(
        "-acflnovwxiA --list-name --list-full --full --count --newest --oldest --inverse --exact --ignore-case"
        " --lightweight --ignore-ancestors",
        text="-dgGPstuUr --delimiter --pgroup --group --parent --session --terminal --euid --uid --ns --nslist"
        " --runstates",
        operands=_NAMES,
    ),
    "pidof": program("-scqwx", text="-oS", operands=_NAMES),
    "pstree": program(
        "-aAcghGlnpsStTuUZ --arguments --ascii --compact-not --long --numeric-sort --show-pids --show-pgids"
        " --show-parents"
        " --thread-names --hide-threads --uid-changes --unicode",
        operands=_NAMES,
    ),
    # Not -K (kills), -D and -F (files), -r (asks name servers), -E (never ends).
    "ss": program(
        "-htulnpaxsw460eiomSdMHOQTZzb --all --listening --tcp --udp --unix --raw --numeric --processes --summary"
        " --ipv4"
        " --ipv6 --extended --info --options --memory --no-header --oneline",
        text="-f --family",
        operands=_NAMES,
        check=_ss,
    ),
    "netstat": program(
        "-atulnpreisWwx46 --all --tcp --udp --unix --listening --numeric --programs --route --extend --interfaces"
        " --statistics"
        " --wide --raw",
        most=0,
        check=_netstat,
    ),
    "ip": _ip,
    "ifconfig": _ifconfig,
    "lslocks": program("-Jnru --json --noheadings --raw", text="-op --output --pid", most=0),
    "lsns": program("-Jlnruw --json --list --noheadings --raw", text="-otp --output --type --task", most=0),
    "ipcs": program("-aqmstculp --all --queues --shmems --semaphores --limits --summary --time --creator", most=0),
    "dpkg": program(
        "-lsLS --list --status --listfiles --search --print-architecture --get-selections"
        " --print-foreign-architectures",
        operands=_NAMES,
    ),
    "dpkg-query": program(
        "-lsLSW --list --status --listfiles --search --show", text="-f --showformat", operands=_NAMES
    ),
    "whereis": program("-bmsul", operands=_NAMES),
    "uuidgen": program("-r --random", most=0),
    "runlevel": program("", most=0),
    "last": program(
        "-aFiRwx --hostlast --fulltimes --ip --nohostname --fullnames --system",
        number="-n --limit",
        digits=True,
        operands=_NAMES,
    ),
}
