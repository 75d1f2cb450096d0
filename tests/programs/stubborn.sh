# Ignores SIGTERM, as do its children, which leave in every way there is.
# $1: seconds they sleep, by which the test knows them.
trap '' TERM HUP
sleep "$1" &
setsid sleep "$1" &
(setsid sleep "$1" &)
(env -i /bin/sleep "$1" &)
while [ "$(grep -lzx "$1" /proc/[0-9]*/cmdline 2>/dev/null | wc -l)" -lt 5 ]; do :; done
echo ready
wait
