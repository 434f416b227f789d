# What the drills have in common. A drill begins with
#
#	. "$(dirname "$0")/lib.sh"
#
# A command that follows `act` is what you would run on a real system, with your own folders and connection strings: it is
# printed before it runs. Everything else plays the part of your system, or checks what came out.
#
# DRILLS_PG_BIN    the folder of PostgreSQL's programs; by default the newest that is installed with pg_basebackup
# DRILLS_BIN       a folder that has the programs outboxgen and drills already
# DRILLS_ORDERS    how many orders are placed before and after what the drill does, a multiple of 6; by default 300
# DRILLS_KEEP=1    keeps the folder of the drill
# shellcheck shell=sh disable=SC2034,SC2154
set -eu
exec 2>&1
export LC_ALL=C TZ=UTC
unset PGHOST PGPORT PGUSER PGDATABASE PGPASSWORD PGSERVICE PGOPTIONS PGDATA DATABASE_URL 2>/dev/null || :

drill="$(basename "$0" .sh)"
tree="$(cd "$(dirname "$0")/../.." && pwd)"
orders="${DRILLS_ORDERS:-300}"

say() { printf '%s\n' "$*"; }
step() { printf '\n== %s\n' "$*"; }
fail() {
	printf '\nFAILED: %s\n' "$*"
	for log in "$work"/*.log; do
		[ -s "$log" ] && printf -- '-- %s\n' "$log" && tail -n 15 "$log"
	done
	exit 1
}

# act prints a command and runs it: outboxgen, drills and psql as the caller, PostgreSQL's other programs as the user of
# the servers.
act() {
	printf '$ %s\n' "$*" | sed "s|$work/||g; s|$pg_bin/||g"
	case "$1" in
	outboxgen | psql) "$@" ;;
	*) as "$@" ;;
	esac
}

# PostgreSQL refuses to run as root: its programs are run with the prefix $as_user then.
user=
as_user=
if [ "$(id -u)" = 0 ]; then
	user=nobody
	if id postgres >/dev/null 2>&1; then user=postgres; fi
	as_user="setpriv --reuid=$(id -u $user) --regid=$(id -g $user) --clear-groups --"
fi
as() { $as_user "$@"; }

has_tools() { for tool in initdb pg_ctl pg_basebackup pg_dump pg_restore psql pg_upgrade pg_resetwal; do [ -x "$1/$tool" ] || return 1; done; }
major_of() { "$1/postgres" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/'; }
# all_tools prints the folders of PostgreSQL's programs, as "MAJOR FOLDER".
all_tools() {
	while read -r place; do
		for dir in $place "$(pg_config --bindir 2>/dev/null)"; do ! has_tools "$dir" || echo "$(major_of "$dir") $dir"; done
	done <"$tree/internal/testing/pgserver/places.txt" | sort -n -u
}
oldest_tools() { all_tools | head -n 1 | cut -d ' ' -f 2-; }
find_tools() {
	if [ -n "${DRILLS_PG_BIN:-}" ]; then
		has_tools "$DRILLS_PG_BIN" && echo "$DRILLS_PG_BIN"
	else
		all_tools | tail -n 1 | cut -d ' ' -f 2- | grep .
	fi
}
pg_bin="$(find_tools)" || {
	echo "drill $drill: no PostgreSQL with its programs (pg_basebackup, pg_dump, pg_upgrade, psql) found: install it, or set DRILLS_PG_BIN" >&2
	exit 2
}

# All of a drill is in one folder, which only the user of the servers and root can read. Servers listen on sockets in it, and
# on no port.
work="$(mktemp -d /tmp/outboxgen-drill-XXXXXX)"
[ -z "$user" ] || chown "$user" "$work"
cd "$work"
pids=
cleanup() {
	status=$?
	trap - EXIT INT TERM
	for pid in $pids; do kill -TERM "$pid" 2>/dev/null || :; done
	for pidfile in "$work"/*/data/postmaster.pid; do
		[ -f "$pidfile" ] && kill -QUIT "$(head -n 1 "$pidfile")" 2>/dev/null || :
	done
	for pid in $pids; do wait "$pid" 2>/dev/null || :; done
	while pgrep -f "^[^ ]*postgres -D $work/" >/dev/null 2>&1; do sleep 0.1; done
	[ -n "${DRILLS_KEEP:-}" ] || rm -rf "$work"
	exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM

if [ -z "${DRILLS_BIN:-}" ]; then
	DRILLS_BIN="$work/bin"
	mkdir "$DRILLS_BIN"
	(cd "$tree" && ${GO:-go} build -o "$DRILLS_BIN/outboxgen" ./cmd/outboxgen && cd tools/drills && ${GO:-go} build -o "$DRILLS_BIN/drills" .)
fi
PATH="$DRILLS_BIN:$pg_bin:$PATH:/usr/sbin"

# url NAME [DATABASE] is the connection string of a server.
url() { echo "host=$work/$1 user=postgres dbname=${2:-shop}"; }
sql() { psql -XAtq -v ON_ERROR_STOP=1 -d "$1" -c "$2"; }

# Server NAME has its socket in the folder NAME, its data in NAME/data and its log in NAME.log.
#
# cluster NAME [BIN] [SETTING...] makes a server and does not start it.
cluster() {
	name="$1"
	bin="${2:-$pg_bin}"
	shift
	[ $# -eq 0 ] || shift
	as mkdir "$work/$name"
	as "$bin/initdb" -D "$work/$name/data" -U postgres --auth=trust --encoding=UTF8 --no-locale --no-sync >/dev/null
	for setting in "listen_addresses = ''" "timezone = 'UTC'" "$@"; do echo "$setting" >>"$work/$name/data/postgresql.conf"; done
}
# start NAME [BIN] starts a server, and waits until it answers.
start() {
	as mkdir -p "$work/$1"
	as "${2:-$pg_bin}/pg_ctl" start -w -t 120 -s -D "$work/$1/data" -l "$work/$1.log" -o "-k $work/$1" >/dev/null ||
		fail "server $1 does not start"
}
stop_server() { as "${2:-$pg_bin}/pg_ctl" stop -w -s -m fast -D "$work/$1/data"; }

# shop NAME makes the database of the shop.
shop() {
	sql "$(url "$1" postgres)" "CREATE DATABASE shop"
	sql "$(url "$1")" "CREATE TABLE orders (id uuid PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());
		CREATE TABLE items (id integer PRIMARY KEY, version bigint NOT NULL DEFAULT 0, latest uuid);
		INSERT INTO items (id) SELECT generate_series(0, 49)"
	outboxgen migrate up --database-url "$(url "$1")" >/dev/null
}
# consumer NAME makes the database of another service, with an inbox. Nothing but the inbox forbids two bills of an order. Stock
# is a projection: the latest order of each item, by the version of the item.
consumer() {
	sql "$(url "$1" postgres)" "CREATE DATABASE consumer"
	sql "$(url "$1" consumer)" "CREATE TABLE billed (order_id uuid NOT NULL); CREATE TABLE stock (item integer PRIMARY KEY, latest uuid)"
	outboxgen migrate up --database-url "$(url "$1" consumer)" >/dev/null
}

# background COMMAND starts a program; its pid is in $pid.
background() {
	"$@" >>"$work/programs.log" 2>&1 &
	pid=$!
	pids="$pids $pid"
}
# finish PID ends a program and waits for it.
finish() {
	kill -TERM "$1" 2>/dev/null || :
	wait "$1" || :
}

lines() { if [ -f "$work/$1" ]; then wc -l <"$work/$1" | tr -d ' '; else echo 0; fi; }
# wait_for SECONDS COMMAND waits until a command succeeds.
wait_for() {
	tries=$(($1 * 5))
	shift
	while ! "$@" >/dev/null 2>&1; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || fail "this did not come true in time: $*"
		sleep 0.2
	done
}
has_lines() { [ "$(lines "$1")" -ge "$2" ]; }
more_lines() { wait_for 180 has_lines "$1" $(($(lines "$1") + $2)); } # waits until the file has so many more
answers() { [ "$(sql "$1" "$2")" = "$3" ]; }
# delivered URL waits until everything in the database is delivered.
delivered() {
	wait_for 300 answers "$1" "SELECT count(*) FROM outbox.queue" 0
	wait_for 300 answers "$1" "SELECT count(*) FROM outbox.log AS g JOIN outbox.listeners AS l ON g.seq > greatest(l.high_seq, l.last_seq)" 0
}

# Sets of orders are sorted files.
set_of() { sort -u "$work/$1" 2>/dev/null || :; } # of the lines of a record
in_database() { sql "$1" "SELECT id FROM orders ORDER BY 1" | sort; }
without() { comm -23 "$1" "$2" | wc -l | tr -d ' '; } # how many of the first are not in the second
billed_twice() { sql "$(url others consumer)" "SELECT count(*) - count(DISTINCT order_id) FROM billed"; }
# stale URL is how many items of the consumer's stock are not as the shop has them.
stale() {
	sql "$1" "SELECT id, latest FROM items ORDER BY id" >"$work/items"
	sql "$(url others consumer)" "SELECT item, latest FROM stock ORDER BY item" | diff "$work/items" - | grep -c '^<' || :
}
twice() { sort "$work/$1" | uniq -d | wc -l | tr -d ' '; }

# expect WHAT FOUND OPERATOR WANTED checks a number.
expect() { [ "$2" "$3" "$4" ] || fail "$1: $2, and not $3 $4"; }

# doctor URL [FLAG...] prints what doctor finds, and keeps it in doctor.out. On a busy machine it is asked again if it could not do
# a check in time.
doctor() {
	db_of_doctor="$1"
	shift
	printf '$ outboxgen doctor%s\n' "${*:+ $*}" | sed "s|$work/||g"
	tries=20
	while :; do
		outboxgen doctor --database-url "$db_of_doctor" "$@" >"$work/doctor.out" 2>&1 || [ $? -eq 1 ] || tries=$((tries - 1))
		grep -q "the check was not done\|^outboxgen: connect" "$work/doctor.out" && [ $tries -gt 0 ] || break
		tries=$((tries - 1))
	done
	cat "$work/doctor.out"
}
doctor_says() { grep -q "$1" "$work/doctor.out" || fail "doctor does not say: $1"; }
doctor_has_no() { ! grep -E "^($1):" "$work/doctor.out" || fail "doctor has found a problem"; }

# configure NAME adds the lines of its input to the configuration of a server, and prints them.
configure() { sed "s|^|+ |" | tee "$work/added" | sed "s|$work/||g" && sed 's/^+ //' "$work/added" | as tee -a "$work/$1/data/postgresql.conf" >/dev/null; }

# account URL counts what came out. It sets lost, ghosts, missed, unheard, again, heard_again.
account() {
	in_database "$1" >"$work/database"
	for name in acknowledged delivered heard; do set_of $name >"$work/$name.set"; done
	lost=$(without acknowledged.set database)
	ghosts=$(without delivered.set database)
	missed=$(without database delivered.set)
	unheard=$(without database heard.set)
	again=$(twice delivered)
	heard_again=$(twice heard)
	say "orders confirmed to writers       $(lines acknowledged)"
	say "lost: not in the database         $lost"
	say "delivered, not in the database    $ghosts"
	say "never delivered                   $missed, never heard $unheard"
	say "delivered twice                   $again, heard twice $heard_again"
	expect "orders that are in the database and were not delivered" "$missed" -eq 0
	expect "orders that are in the database and were not heard" "$unheard" -eq 0
}
# consumer_account URL counts what came out at the consumer.
consumer_account() {
	billed=$(billed_twice)
	old=$(stale "$1")
	say "billed twice, with an inbox       $billed"
	say "items whose projection is old     $old"
	expect "orders that were billed twice" "$billed" -eq 0
	expect "items whose projection is old" "$old" -eq 0
}
