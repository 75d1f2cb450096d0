"""The small languages: what only filters passes, what writes, runs or reads more asks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shellback.exec.policy.classify.languages import awk, jq, sed
from shellback.exec.policy.classify.model import Asks


def filters(language: Callable[[str], None], script: str) -> bool:
    try:
        language(script)
    except Asks:
        return False
    return True


@pytest.mark.parametrize(
    "script",
    ["", "p", "1,5p", "$!N;P;D", "/a/,/b/d", "/a/I,+3!d", r"\,a,d", "s/a/b/", "s/a/b/g2p", "s|a|b|I;p", "y/abc/xyz/",
     "5q", "q1",
     ":a;N;$!ba;s/\\n/ /g", "1~2d", "0,/x/d", "{p;p}", "/a/{s/b/c/;p}", "1i some text; w x", "=;l 5;F",
     "s/[^,]*[]x]//", "s/[[:space:]]*$//", "s/a/\\//",
     "2,$ { n ; d }", "b;t;T x", "z;x;h;G"],
)  # fmt: skip
def test_sed_that_only_filters(script: str) -> None:
    assert filters(sed, script)


@pytest.mark.parametrize(
    "script",
    ["w x", "1w x", "$!w x", "/a/w x", "s/a/b/w x", "s/a/b/gw x", "s/a/b/e", "e", "1e touch x", "r /etc/passwd",
     "R x", "W x",
     "{w x\n}", "p;w x", "p\nw x", "}w x", ":a w x", "ba w x", "s/[/]/x/w y/", "s/[/]/x/", "s/[]/x/", "s/[^/]*$//",
     "s/[]/]w/x/", "/[/w x/p",
     "s/a/\\/w x/;w y", "y/a/b/w x", "1,2,3p", "v;w x",
     "a\\\nx", "a x\\", "i x\nw y", "#n\nw x", "s/a/b", "s", "M", "s/a\nb/c/", "1,w x", "saba", "sébéwé", "q1 w x",
     "l5w x",
     "s/a/b/;;;w x", "!w x", "+1p w"],
)  # fmt: skip
def test_sed_that_may_do_more(script: str) -> None:
    assert not filters(sed, script)


@pytest.mark.parametrize(
    "source",
    ["1", "NR>1", "{print}", "{print $1, $NF}", "/a|b/", "!/a/", "$1 ~ /x/ || /y/",
     "BEGIN{FS=\",\"} {s+=$2} END{print s/NR}", "{if ($1 > 5) print; else next}",
     "{a[$1]++} END{for (k in a) print k, a[k]}",
     "{print (a+b)/2}", "{printf \"%s\\n\", $1}", "length($0) > 80", "!seen[$0]++",
     "{gsub(/[[:space:]]+/, \" \"); print}",
     "{print substr($0, 1, 3) \"|\" $2}", "$3 > 1 {x = $3 / 2; print x}", "{print a[1]/2}", "{print 1/2; y = 3 > 2}"],
)  # fmt: skip
def test_awk_that_only_filters(source: str) -> None:
    assert filters(awk, source)


@pytest.mark.parametrize(
    "source",
    ["BEGIN{system(\"x\")}", "{print > \"x\"}", "{print >> \"x\"}", "{print | \"x\"}", "\"x\" | getline",
     "{getline < \"x\"}",
     "{print |& \"x\"}", "{printf(\"x\") > \"y\"}", "BEGIN{print ENVIRON[\"A\"]}", "BEGIN{ARGV[1]=\"x\"}",
     "@include \"x\"",
     "BEGIN{f=\"system\";@f(\"x\")}", "{print /\"/ | \"x\" } #\"", "{if (1) /\"/ ; print | \"x\" } #\"/",
     "{print a,\nb > \"x\"}",
     "function f(x){system(x)}", "f(1)", "{close(\"x\")}", "{print \\\n> \"x\"}", "#x\n{print > \"y\"}",
     "{print PROCINFO[1]}",
     "/[/]\"/{print > \"x\"} #\"/", "{return /\"/ > \"x\"}", "/x", "\"x", "{ print /a/ /\"/ | \"x\" }",
     "{print length /\"/ > \"x\"}",
     "/a[/", "é", "{x = \"a\" /\"/ ; print | \"y\" } #\"", "{ print $0 > $1 }", "{fflush()}",
     "BEGIN { while (1) /\"/; print|\"x\" }"],
)  # fmt: skip
def test_awk_that_may_do_more(source: str) -> None:
    assert not filters(awk, source)


@pytest.mark.parametrize(
    "source", [".", ".env", ".a.env", '.["x"]', "map(.a) | length", "$x", ".environment", "envelope"]
)
def test_jq_that_sees_its_input(source: str) -> None:
    assert filters(jq, source)


@pytest.mark.parametrize(
    "source",
    ["env", "$ENV", "$ENV.HOME", "env.HOME", "[env]", "..env", '"\\(env)"', "$ ENV",
     'import "x" as x; .', 'include "x"; .',
     "input_filename", "$__prog_args", ". | env", "modulemeta", "get_search_list"],
)  # fmt: skip
def test_jq_that_reads_more(source: str) -> None:
    assert not filters(jq, source)
