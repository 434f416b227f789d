#!/bin/sh
# VACUUM FULL and REINDEX CONCURRENTLY of the tables of the outbox, while writers and a worker run. The first locks a table for
# as long as it takes: writers wait. The second does not. Nothing is lost.
. "$(dirname "$0")/lib.sh"

step "A server with a delivered backlog, writers and a worker"
cluster main
start main
shop main
db="$(url main)"
background drills work -db "$db" -dir "$work"
worker=$pid
drills write -db "$db" -dir "$work" -orders $((orders * 5)) -pause 0
background drills write -db "$db" -dir "$work" -pause 1ms
writers=$pid
more_lines acknowledged $orders

# during COMMAND says what the writers got done while it ran.
during() {
	before=$(lines acknowledged)
	began=$(date +%s%N)
	act "$@"
	say "    took $((($(date +%s%N) - began) / 1000000)) ms, and $(($(lines acknowledged) - before)) orders were confirmed meanwhile"
	more_lines acknowledged $((orders / 3))
}
step "VACUUM FULL"
for table in events queue delivered log listeners; do during psql -Xq "$db" -c "SET lock_timeout = '5s'" -c "VACUUM (FULL, ANALYZE) outbox.$table"; done
step "REINDEX CONCURRENTLY"
for table in events queue delivered log listeners; do during psql -Xq "$db" -c "REINDEX TABLE CONCURRENTLY outbox.$table"; done
invalid="$(sql "$db" "SELECT count(*) FROM pg_index WHERE NOT indisvalid")"
say "indexes that are not valid: $invalid"
expect "indexes that are not valid" "$invalid" -eq 0

step "The account"
finish $writers
delivered "$db"
doctor "$db"
doctor_has_no "error|warning"
finish $worker
grep -c "level=ERROR" programs.log | sed 's/^/lines at ERROR in the log of the worker: /' || :
account "$db"
expect "lost orders" "$lost" -eq 0
expect "orders of which nobody knows whether they were committed" "$(lines unknown)" -eq 0
expect "orders that were delivered twice" "$again" -eq 0
expect "orders that were heard twice" "$heard_again" -eq 0
