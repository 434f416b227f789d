#!/bin/sh
# A streaming replica is promoted while writers and workers run. Replication is asynchronous, so that what the primary has
# confirmed in its last moments is lost. The drill counts it.
. "$(dirname "$0")/lib.sh"

step "A primary with a standby, four writers, a worker, and a consumer with an inbox on another server"
cluster primary
start primary
shop primary
cluster others
start others
consumer others
act pg_basebackup --write-recovery-conf --checkpoint=fast --dbname="$(url primary postgres)" --pgdata="$work/standby/data"
start standby
# Programs have both servers in their connection string, and take the one that can be written to.
both="host=$work/primary,$work/standby user=postgres dbname=shop target_session_attrs=read-write connect_timeout=5"
background drills write -db "$both" -dir "$work"
writers=$pid
background drills work -db "$both" -dir "$work" -inbox "$(url others consumer)"
worker=$pid
more_lines acknowledged $orders
more_lines delivered $orders

step "The link to the standby is slow, and then the primary dies"
sender="$(sql "$(url primary)" "SELECT pid FROM pg_stat_replication")"
kill -STOP "$sender"
more_lines acknowledged $((orders / 3))
more_lines delivered $((orders / 3))
doctor "$(url primary)"
doctor_says "^notice: replication: standby .* replicates asynchronously"
postmaster="$(head -n 1 "$work/primary/data/postmaster.pid")"
kill -KILL "$postmaster" "$sender"
say "the primary is gone, with $(lines acknowledged) orders that it has confirmed"

step "Promote the standby. The old primary must never come back as a primary: pg_rewind makes a standby of it"
rm -f "$work/primary/data/postmaster.pid"
act pg_ctl promote -D "$work/standby/data"
db="$(url standby)"
say "Consumers have seen versions of items that are lost. They would take the next orders of these items for old ones:"
act psql -q "$db" -c "UPDATE items SET version = version + 1000000"
more_lines acknowledged $orders
finish $writers
delivered "$db"
finish $worker

step "What doctor and rebase say"
doctor "$db"
doctor_says "^notice: replication: timeline 00000002 began"
doctor_has_no "error|warning"
act outboxgen listener rebase --database-url "$db"

step "The account"
account "$db"
consumer_account "$db"
say "What is lost is lost: the old primary had confirmed it. What was delivered of it keeps its effects"
expect "lost orders" "$lost" -gt 0
