#!/bin/sh
# pg_upgrade with a backlog, from the oldest PostgreSQL to the newest that are installed with all their programs. pg_upgrade
# keeps transaction ids and makes a new cluster, so that listeners need a rebase. Nothing is lost and nothing comes twice.
. "$(dirname "$0")/lib.sh"

new_bin="$pg_bin"
old_bin="${DRILLS_PG_OLD:-$(oldest_tools)}"
[ "$(major_of "$old_bin")" != "$(major_of "$new_bin")" ] ||
	say "note: only PostgreSQL $(major_of "$new_bin") is here with pg_upgrade: the new cluster has the version of the old one"

step "A server with a backlog: one part is delivered, one part waits"
cluster old "$old_bin"
start old "$old_bin"
shop old
drills write -db "$(url old)" -dir "$work" -orders $orders
background drills work -db "$(url old)" -dir "$work"
worker=$pid
delivered "$(url old)"
drills write -db "$(url old)" -dir "$work" -orders $((orders / 3))
finish $worker
drills write -db "$(url old)" -dir "$work" -orders $orders
say "waiting: $(sql "$(url old)" "SELECT count(*) FROM outbox.queue")"

step "Stop programs and server, and upgrade"
stop_server old "$old_bin"
cluster new "$new_bin"
as mkdir "$work/upgrade"
cd "$work/upgrade"
act pg_upgrade --old-bindir="$old_bin" --new-bindir="$new_bin" --old-datadir="$work/old/data" --new-datadir="$work/new/data" \
	--username=postgres --link --socketdir="$work/upgrade" >"$work/upgrade.log" || fail "pg_upgrade"
grep '^\$' "$work/upgrade.log"
grep -A 1 'Upgrade Complete' "$work/upgrade.log"
cd "$work"
start new "$new_bin"
db="$(url new)"
say "from $("$old_bin/postgres" --version) to $("$new_bin/postgres" --version)"
act vacuumdb --quiet --all --analyze-in-stages --host="$work/new" --username=postgres

step "What doctor and a worker say of the new server"
doctor "$db"
doctor_says "error: listeners: the database was restored"
if drills work -db "$db" -dir "$work" >worker.out 2>&1; then fail "a worker has started"; fi
say "a worker says: $(tail -n 1 worker.out)"

step "Rebase, then start writers and workers"
act outboxgen listener rebase --database-url "$db" --yes
doctor "$db"
doctor_has_no "error|warning"
background drills work -db "$db" -dir "$work"
worker=$pid
drills write -db "$db" -dir "$work" -orders $orders
delivered "$db"
finish $worker

step "The account"
account "$db"
expect "lost orders" "$lost" -eq 0
expect "orders that were delivered twice" "$again" -eq 0
expect "orders that were heard twice" "$heard_again" -eq 0
