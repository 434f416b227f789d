#!/bin/sh
# All tables move to a new server, which may have a newer version, by logical replication while writers and workers run; then
# programs switch. Sequences are not replicated, and transaction ids mean nothing there: doctor says so, and rebase mends both.
. "$(dirname "$0")/lib.sh"

step "The old server, with writers and a worker"
cluster old "" "wal_level = logical"
start old
shop old
background drills write -db "$(url old)" -dir "$work"
writers=$pid
background drills work -db "$(url old)" -dir "$work"
worker=$pid
more_lines acknowledged $orders

step "A new server gets the tables, empty, and subscribes"
cluster new "${DRILLS_PG_NEW:-}"
start new "${DRILLS_PG_NEW:-}"
say "from $(sql "$(url old)" "SHOW server_version") to $(sql "$(url new postgres)" "SHOW server_version")"
sql "$(url new postgres)" "CREATE DATABASE shop"
db="$(url new)"
act pg_dump --schema-only --file="$work/tables.sql" "$(url old)"
act psql -Xq -v ON_ERROR_STOP=1 --dbname="$db" --file="$work/tables.sql" -o /dev/null
act psql -Xq "$(url old)" -c "CREATE PUBLICATION move FOR ALL TABLES"
act psql -Xq "$db" -c "CREATE SUBSCRIPTION move CONNECTION '$(url old)' PUBLICATION move"
wait_for 180 answers "$db" "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'" 0
more_lines acknowledged $orders

step "Stop workers and writers, wait until the new server has everything, and end the subscription"
finish $worker
more_lines acknowledged $((orders / 3))
finish $writers
lsn="$(sql "$(url old)" "SELECT pg_current_wal_lsn()")"
act psql -XAtq "$(url old)" -c "SELECT slot_name, confirmed_flush_lsn - '$lsn' AS ahead FROM pg_replication_slots"
wait_for 180 answers "$(url old)" "SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots" t
act psql -Xq "$db" -c "DROP SUBSCRIPTION move"

step "What doctor and a worker say of the new server"
doctor "$db"
doctor_says "error: listeners: the database was restored"
doctor_says "error: log: sequence .*log_seq is at"
if drills work -db "$db" -dir "$work" >worker.out 2>&1; then fail "a worker has started"; fi
say "a worker says: $(tail -n 1 worker.out)"

step "Rebase, then start writers and workers with the new server"
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
