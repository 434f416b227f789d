#!/bin/sh
# A database is restored to a point in time before a delivery. What was delivered after that point comes twice; the inbox of a
# consumer drops it. What was enqueued after that point is lost, and its effects are not.
. "$(dirname "$0")/lib.sh"

step "A server that archives its WAL, with a base backup, writers, a worker, and a consumer with an inbox on another server"
as mkdir "$work/archive"
cluster main "" "archive_mode = on" "archive_command = 'test ! -f $work/archive/%f && cp %p $work/archive/%f'"
start main
shop main
cluster others
start others
consumer others
act pg_basebackup --checkpoint=fast --dbname="$(url main postgres)" --pgdata="$work/backup"
drills write -db "$(url main)" -dir "$work" -orders $orders
background drills work -db "$(url main)" -dir "$work" -inbox "$(url others consumer)"
worker=$pid
delivered "$(url main)"
finish $worker

step "A backlog; the point in time; its delivery, and more orders; then somebody deletes a table"
drills write -db "$(url main)" -dir "$work" -orders $((orders / 3))
act psql -q "$(url main)" -c "SELECT pg_create_restore_point('before_the_delivery')" -o /dev/null
set_of acknowledged >before
background drills work -db "$(url main)" -dir "$work" -inbox "$(url others consumer)"
worker=$pid
drills write -db "$(url main)" -dir "$work" -orders $((orders / 6))
delivered "$(url main)"
finish $worker
sql "$(url main)" "DROP TABLE orders"
stop_server main

step "Restore the backup to the point in time. Keep programs away from the old server"
as mkdir "$work/restored"
act cp -R "$work/backup" "$work/restored/data"
configure restored <<END
archive_mode = off
restore_command = 'cp $work/archive/%f %p'
recovery_target_name = 'before_the_delivery'
recovery_target_action = 'promote'
END
act touch "$work/restored/data/recovery.signal"
start restored
db="$(url restored)"
wait_for 60 answers "$db" "SELECT pg_is_in_recovery()" f

step "What doctor and rebase say"
doctor "$db"
doctor_says "^notice: replication: timeline 00000002 began"
doctor_has_no "error|warning"
act outboxgen listener rebase --database-url "$db"

step "Continue. Consumers have seen versions of items that are lost, and would take the next orders of these items for old ones"
act psql -q "$db" -c "UPDATE items SET version = version + 1000000"
background drills work -db "$db" -dir "$work" -inbox "$(url others consumer)"
worker=$pid
drills write -db "$db" -dir "$work" -orders 50 # one of each item
delivered "$db"
finish $worker

step "The account"
account "$db"
consumer_account "$db"
expect "lost orders" "$lost" -eq $((orders / 6))
expect "orders that were delivered twice" "$again" -eq $((orders / 3))
expect "orders that were heard twice" "$heard_again" -eq $((orders / 3))
