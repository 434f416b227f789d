#!/bin/sh
# The schema of the outbox is dumped and restored, once into another database of the same server, and once into another server.
# The copy on the other server needs a rebase. Nothing is lost and nothing comes twice.
. "$(dirname "$0")/lib.sh"

step "A server with a backlog: one part is delivered, and one part waits"
cluster old
start old
shop old
drills write -db "$(url old)" -dir "$work" -orders $orders
background drills work -db "$(url old)" -dir "$work"
worker=$pid
delivered "$(url old)"
finish $worker
drills write -db "$(url old)" -dir "$work" -orders $orders

step "Writers and workers are stopped. Dump the schema, and restore it into another database of the server"
act pg_dump --schema=outbox --format=custom --file="$work/outbox.dump" "$(url old)"
sql "$(url old postgres)" "CREATE DATABASE moved"
act pg_restore --exit-on-error --dbname="$(url old moved)" "$work/outbox.dump"
doctor "$(url old moved)"
doctor_has_no "error|warning"
act outboxgen listener rebase --database-url "$(url old moved)"

step "Restore it into another server"
cluster new "${DRILLS_PG_NEW:-}"
start new "${DRILLS_PG_NEW:-}"
say "from $(sql "$(url old)" "SHOW server_version") to $(sql "$(url new postgres)" "SHOW server_version")"
sql "$(url new postgres)" "CREATE DATABASE shop"
db="$(url new)"
act pg_restore --exit-on-error --dbname="$db" "$work/outbox.dump"
sql "$db" "CREATE TABLE orders (id uuid PRIMARY KEY); CREATE TABLE items (id integer PRIMARY KEY, version bigint, latest uuid)"
for table in orders items; do psql -XAtq -d "$(url old)" -c "COPY (SELECT * FROM $table) TO STDOUT" >$table; done
cut -f 1 orders | psql -Xq -d "$db" -c "COPY orders FROM STDIN"
psql -Xq -d "$db" -c "COPY items FROM STDIN" <items
doctor "$db"
doctor_says "error: listeners: the database was restored"
if drills work -db "$db" -dir "$work" >worker.out 2>&1; then fail "a worker has started"; fi
say "a worker says: $(tail -n 1 worker.out)"

step "Rebase: first see what it would do"
act outboxgen listener rebase --database-url "$db"
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
