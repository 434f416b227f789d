#!/bin/sh
# 1,000 connections of writers, and two workers, behind PgBouncer in transaction mode, on a server that allows 60.
. "$(dirname "$0")/lib.sh"
command -v pgbouncer >/dev/null || {
	say "drill $drill: no PgBouncer found: install it (tools/need.sh pgbouncer)"
	exit 2
}
ulimit -n "$(ulimit -H -n)"
[ "$(ulimit -n)" = unlimited ] || [ "$(ulimit -n)" -ge 2100 ] || fail "1,000 connections need more open files than ulimit -n allows"

step "A server of 60 connections, and PgBouncer with 20 of them"
cluster main "" "max_connections = 60"
start main
shop main
as mkdir "$work/bouncer"
as tee "$work/bouncer/pgbouncer.ini" <<END | sed "s|$work/||g"
[databases]
shop = host=$work/main dbname=shop

[pgbouncer]
pool_mode = transaction
default_pool_size = 20
max_client_conn = 1100
listen_addr =
unix_socket_dir = $work/bouncer
auth_type = trust
auth_file = $work/bouncer/users
admin_users = postgres
END
echo '"postgres" ""' | as tee "$work/bouncer/users" >/dev/null
# shellcheck disable=SC2086
background $as_user pgbouncer --quiet "$work/bouncer/pgbouncer.ini"
db="host=$work/bouncer port=6432 user=postgres dbname=shop"
wait_for 30 sql "$db" "SELECT 1"

step "A worker with a direct connection for LISTEN, one that polls, and 1,000 connections of writers"
background drills work -db "$db" -listen "$(url main)" -dir "$work"
worker=$pid
background drills work -db "$db" -poll -dir "$work"
other=$pid
background drills write -db "$db" -writers 1000 -orders $((orders * 2)) -pause 10s -open -dir "$work"
writers=$pid
most=0
console="host=$work/bouncer port=6432 user=postgres dbname=pgbouncer"
while [ "$(lines acknowledged)" -lt $((orders * 2)) ]; do
	kill -0 $writers 2>/dev/null || fail "the writers have ended"
	n="$(sql "$(url main)" "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")"
	[ "$n" -le "$most" ] || most=$n
	sleep 0.2
done
clients="$(psql -XAtq -F ' ' -d "$console" -c "SHOW CLIENTS" | grep -c " shop ")"
say "connections to PgBouncer: $clients; to the server at most: $most"
expect "connections to PgBouncer" "$clients" -ge 1000
expect "connections to the server" "$most" -le 30

step "What doctor says through PgBouncer, and with the direct connection for LISTEN"
doctor "$db"
doctor_says "^error: listen:\|^warning: listen:"
doctor "$db" --listen-url "$(url main)"

step "The account"
finish $writers
delivered "$(url main)"
finish $worker
finish $other
account "$(url main)"
expect "lost orders" "$lost" -eq 0
expect "orders that were delivered twice" "$again" -eq 0
expect "orders that were heard twice" "$heard_again" -eq 0
