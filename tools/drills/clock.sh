#!/bin/sh
# The clocks of two workers are wrong by five minutes, one fast and one slow; a third is right. Then workers are killed with
# SIGKILL, and others take over what they held when their leases end: neither earlier nor later. Writers' clocks are wrong, too.
. "$(dirname "$0")/lib.sh"

step "Programs that are built with another time.Now"
# One folder for all runs, the one of `make chaos-million`, so that Go's build cache has the standard library next time.
clocks="${TMPDIR:-/tmp}/outboxgen-clocks-$(id -u)"
(cd "$tree/tools" && ${GO:-go} run ./stepclock "$clocks" >/dev/null)
mkdir "$work/wrong"
(cd "$tree/tools/drills" && ${GO:-go} build -overlay "$clocks/overlay.json" -o "$work/wrong/drills" .)
(cd "$tree" && ${GO:-go} build -overlay "$clocks/overlay.json" -o "$work/wrong/outboxgen" ./cmd/outboxgen)
fast() { OUTBOXGEN_CLOCK_WRONG=300 exec "$work/wrong/drills" "$@"; }
slow() { OUTBOXGEN_CLOCK_WRONG=-300 exec "$work/wrong/drills" "$@"; }

step "A server with three workers and two writers"
cluster main
start main
shop main
db="$(url main)"
background fast work -db "$db" -dir "$work"
ahead=$pid
background slow work -db "$db" -dir "$work"
behind=$pid
background drills work -db "$db" -dir "$work"
right=$pid
background fast write -db "$db" -dir "$work"
writers=$pid
background slow write -db "$db" -dir "$work"
writers="$writers $pid"
more_lines delivered $orders
more_lines heard $orders
sql "$db" "SELECT count(DISTINCT pid) FROM outbox.processes" | sed 's/^/processes that doctor and status see: /'
most_ahead="$(sql "$db" "SELECT coalesce(max(extract(epoch FROM next_attempt_at - now())), 0)::int FROM outbox.queue WHERE attempts = 0")"
say "an event is due at most $most_ahead s after its enqueue"
expect "seconds until an event is due" "$most_ahead" -lt 60

step "What doctor says on the machine whose clock is wrong"
OUTBOXGEN_CLOCK_WRONG=300 "$work/wrong/outboxgen" doctor --database-url "$db" >doctor.out 2>&1 || :
cat doctor.out
doctor_says "^notice: clock: the clock of the database is [45]m.* behind"

step "Both wrong workers are killed in the middle of their work"
kill -KILL $ahead $behind
for w in $writers; do finish "$w"; done
began=$(date +%s)
delivered "$db"
say "all is delivered $(($(date +%s) - began)) s later; a lease is 6 s"
finish $right

step "The account"
account "$db"
expect "lost orders" "$lost" -eq 0
say "What comes twice is what the killed workers had handled and not yet said so"
