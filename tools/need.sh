#!/bin/sh
# Checks that this machine has what a target of the Makefile needs, and installs what is missing with apt-get, if apt-get
# exists and we are root or have sudo without a password.
#
#   need.sh postgres   needs a PostgreSQL that can be started; fetches one if none can be installed; fails without one
#   need.sh race       needs a C compiler; prints go test's flag for the race detector, or nothing without a compiler
#   need.sh pgbouncer  needs PgBouncer; fails without it
#   need.sh brokers    needs RabbitMQ and Redis; fails without them
#   need.sh no-brokers says which of them is missing; installs nothing
#   need.sh promtool   wants promtool of Prometheus; without it a test is skipped
#   need.sh chromium   wants Chromium; without it the dashboard is not tested in a browser
#   need.sh axe        wants axe-core; without it the accessibility of the dashboard is not tested
#   need.sh site       needs Node.js with npm, and what site/package-lock.json names; fails without them
#   need.sh npm        needs npm; fails without it
#   need.sh asyncapi   wants Ajv and the parser of AsyncAPI; without them exports are checked in Go only
set -eu

tools="$(dirname "$0")"

# It looks where Find in internal/testing/pgserver looks, except into the folder of tools/postgres.sh.
has_postgres() {
	if [ -n "${OUTBOXGEN_PG_BIN:-}" ]; then
		has_server "$OUTBOXGEN_PG_BIN"
		return
	fi
	initdb="$(command -v initdb)" && has_server "$(dirname "$initdb")" && return
	dir="$(pg_config --bindir 2>/dev/null)" && has_server "$dir" && return
	while read -r place; do
		for dir in $place; do has_server "$dir" && return; done
	done <"$tools/../internal/testing/pgserver/places.txt"
	return 1
}
has_server() { [ -x "$1/initdb" ] && [ -x "$1/postgres" ]; }

# This builds C code and links it, which needs the headers of libc as well.
has_race() { CGO_ENABLED=1 ${GO:-go} build -race runtime/cgo >/dev/null 2>&1; }

# install PACKAGE... fails if we are not allowed to install.
install() {
	command -v apt-get >/dev/null 2>&1 || return 1
	sudo=
	if [ "$(id -u)" != 0 ]; then
		sudo -n true 2>/dev/null || return 1
		sudo=sudo
	fi
	echo "installing $* with apt-get" >&2
	$sudo apt-get -qq update >/dev/null
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get -y -qq -o DPkg::Lock::Timeout=300 --no-install-recommends install "$@" >/dev/null
}

# Only the program is taken out of Debian's package: to install it would start a server.
fetch_promtool() {
	command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 || return 1
	echo "fetching promtool with apt-get download" >&2
	dir="$(mktemp -d)"
	(cd "$dir" && apt-get -qq download prometheus >/dev/null 2>&1 && dpkg-deb -x prometheus_*.deb .) &&
		mkdir -p bin && cp "$dir/usr/bin/promtool" bin/promtool && status=0 || status=1
	rm -rf "$dir"
	return $status
}

has_chromium() {
	for name in "${OUTBOXGEN_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
		if [ -n "$name" ] && command -v "$name" >/dev/null 2>&1; then return 0; fi
	done
	return 1
}

# axe-core comes from the npm registry that npm is configured for. The tests look for it in bin.
axe=bin/axe-4.14.1.min.js
has_axe() { [ "$(sha256 "$axe")" = 29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c ]; }
# macOS has no sha256sum.
sha256() { { sha256sum "$1" || shasum -a 256 "$1"; } 2>/dev/null | cut -d' ' -f1; }
fetch_axe() {
	command -v npm >/dev/null 2>&1 || return 1
	echo "fetching axe-core with npm pack" >&2
	dir="$(mktemp -d)"
	(cd "$dir" && npm pack --silent axe-core@4.14.1 >/dev/null 2>&1 && tar -xzf axe-core-*.tgz package/axe.min.js) &&
		mkdir -p bin && cp "$dir/package/axe.min.js" "$axe" && has_axe && status=0 || status=1
	rm -rf "$dir"
	return $status
}

# The tools of npm are installed together. The tests look for them in bin/npm.
npm="@asyncapi/parser@3.6.3 @asyncapi/specs@6.11.1 ajv@8.20.0 ajv-formats@3.0.1"
has_asyncapi() { command -v node >/dev/null 2>&1 && [ "$(cat bin/npm/installed 2>/dev/null)" = "$npm" ]; }
fetch_asyncapi() {
	command -v npm >/dev/null 2>&1 || return 1
	echo "installing the parser of AsyncAPI and Ajv with npm" >&2
	mkdir -p bin/npm && rm -f bin/npm/installed || return 1
	# shellcheck disable=SC2086
	(cd bin/npm && npm install --silent --no-audit --no-fund --no-save --ignore-scripts $npm >/dev/null 2>&1) && echo "$npm" >bin/npm/installed
}
# What makes the site is installed into site/node_modules. The copy of the lock file there says that it is complete.
has_npm() {
	command -v npm >/dev/null 2>&1 && command -v node >/dev/null 2>&1 &&
		node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)'
}
has_site() { cmp -s site/package-lock.json site/node_modules/.outboxgen-lock.json; }
fetch_site() {
	echo "installing what makes the site with npm, into site/node_modules" >&2
	(cd site && npm ci --silent --no-audit --no-fund --ignore-scripts) && cp site/package-lock.json site/node_modules/.outboxgen-lock.json
}
has_rabbitmq() {
	for dir in /usr/lib/rabbitmq/bin /usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin /opt/homebrew/opt/rabbitmq/sbin \
		/usr/local/opt/rabbitmq/sbin /opt/rabbitmq/sbin; do
		if [ -x "$dir/rabbitmq-server" ]; then return 0; fi
	done
	return 1
}
has_redis() { command -v redis-server >/dev/null 2>&1; }

case "$1" in
postgres)
	if ! has_postgres && [ -n "${OUTBOXGEN_PG_BIN:-}" ]; then
		echo "no PostgreSQL found: OUTBOXGEN_PG_BIN=$OUTBOXGEN_PG_BIN does not contain initdb and postgres" >&2
		exit 1
	fi
	has_postgres || { install postgresql && has_postgres; } || {
		bin="$("$tools/postgres.sh" 18)" || {
			echo "no PostgreSQL found: install it, or set OUTBOXGEN_PG_BIN to the folder of its initdb" >&2
			exit 1
		}
		echo "no PostgreSQL is installed: using the fetched one in $bin" >&2
	} ;;
race)
	if has_race || { install gcc libc6-dev && has_race; }; then
		echo -race
	else
		echo "no C compiler found: the tests run without the race detector; to use it, apt-get install gcc libc6-dev" >&2
	fi ;;
pgbouncer)
	has_pgbouncer() { command -v pgbouncer >/dev/null 2>&1 || test -x /usr/sbin/pgbouncer; }
	has_pgbouncer || { install pgbouncer && has_pgbouncer; } || {
		echo "no PgBouncer found: install it (apt-get install pgbouncer)" >&2
		exit 1
	} ;;
brokers)
	has_rabbitmq || { install rabbitmq-server && has_rabbitmq; } || {
		echo "no RabbitMQ found: install it (apt-get install rabbitmq-server)" >&2
		exit 1
	}
	has_redis || { install redis-server && has_redis; } || {
		echo "no Redis found: install it (apt-get install redis-server)" >&2
		exit 1
	} ;;
no-brokers)
	missing=
	has_rabbitmq || missing="RabbitMQ"
	has_redis || missing="${missing:+$missing and }Redis"
	test -z "$missing" || echo "no $missing found: the publishers for them are NOT tested; to test them, make test-brokers" >&2 ;;
npm)
	command -v npm >/dev/null 2>&1 || { install npm && command -v npm >/dev/null 2>&1; } || {
		echo "no npm found: install Node.js with npm (apt-get install npm)" >&2
		exit 1
	} ;;
promtool)
	command -v promtool >/dev/null 2>&1 || test -x bin/promtool || fetch_promtool ||
		echo "no promtool found: the alerts are checked without it; to use it, put it into the PATH" >&2 ;;
chromium)
	has_chromium || { install chromium && has_chromium; } ||
		echo "no Chromium found: the dashboard is NOT tested in a browser; to test it, apt-get install chromium" >&2 ;;
axe)
	has_axe || fetch_axe ||
		echo "no axe-core found: the accessibility of the dashboard is NOT tested; to test it, install npm" >&2 ;;
site)
	has_npm || { install nodejs npm && has_npm; } || {
		echo "no Node.js 20.19 or later with npm found: install it (apt-get install nodejs npm, or https://nodejs.org)" >&2
		exit 1
	}
	has_site || fetch_site || {
		echo "what makes the site cannot be installed: npm ci in site says why" >&2
		exit 1
	} ;;
asyncapi)
	has_asyncapi || fetch_asyncapi ||
		echo "no parser of AsyncAPI found: exports are NOT checked with the official tools; to check them, install Node.js with npm" >&2 ;;
esac
