#!/bin/sh
# Transaction ids are nearly used up, because autovacuum was told to wait: doctor warns before PostgreSQL refuses to write. Then
# they go past 2^32, where the 32 bits of rows begin again: cursors of listeners have 64 bits, and hold.
. "$(dirname "$0")/lib.sh"

# use_up XID lets the server's next transaction id be XID, as if it had used those before. pg_resetwal is for this drill only:
# it destroys what a real server needs to recover.
use_up() {
	xid="$1"
	stop_server main
	as pg_resetwal -x $((xid % 4294967296)) -e $((xid / 4294967296)) -D "$work/main/data" >/dev/null
	as dd if=/dev/zero of="$work/main/data/pg_xact/$(printf '%04X' $((xid / 1048576)))" bs=8192 count=32 2>/dev/null
	start main
}
oldest() { sql "$db" "SELECT max(age(datfrozenxid)) FROM pg_database"; }
now() { sql "$db" "SELECT pg_snapshot_xmax(pg_current_snapshot())"; }

step "A server whose autovacuum waits, with a backlog"
cluster main "" "autovacuum_freeze_max_age = 2000000000"
start main
shop main
db="$(url main)"
background drills work -db "$db" -dir "$work"
worker=$pid
drills write -db "$db" -dir "$work" -orders $orders
delivered "$db"
finish $worker
drills write -db "$db" -dir "$work" -orders $((orders / 3))
doctor "$db"
doctor_has_no "error|warning"

step "1,200 million transactions later"
use_up 1200000000
say "the oldest database is $(oldest) transactions old"
doctor "$db"
doctor_says "^warning: wraparound: databases hold"

step "1,900 million transactions later"
use_up 1900000000
say "the oldest database is $(oldest) transactions old"
doctor "$db"
doctor_says "^error: wraparound: databases hold"

step "Freeze what doctor names, and let autovacuum do it from now on, in template0 too"
act vacuumdb --quiet --all --freeze --host="$work/main" --username=postgres
sed -i.bak '/autovacuum_freeze_max_age = 2000000000/d' "$work/main/data/postgresql.conf"
configure main <<END
autovacuum_naptime = 1s
END
stop_server main
start main
wait_for 120 answers "$db" "SELECT max(age(datfrozenxid)) < 200000000 FROM pg_database" t
doctor "$db"
doctor_has_no "error|warning"

step "On to 2^32: the backlog from the beginning, and new orders while the ids go past it"
use_up 3400000000
wait_for 120 answers "$db" "SELECT max(age(datfrozenxid)) < 200000000 FROM pg_database" t
use_up $((4294967296 - orders))
say "the next transaction id is $(now)"
background drills work -db "$db" -dir "$work"
worker=$pid
drills write -db "$db" -dir "$work" -orders $orders
delivered "$db"
say "the next transaction id is $(now), and in rows $(($(now) % 4294967296))"
expect "the next transaction id" "$(now)" -gt 4294967296
finish $worker
doctor "$db"
doctor_has_no "error"
act outboxgen listener rebase --database-url "$db"

step "The account"
account "$db"
expect "lost orders" "$lost" -eq 0
expect "orders that were delivered twice" "$again" -eq 0
expect "orders that were heard twice" "$heard_again" -eq 0
