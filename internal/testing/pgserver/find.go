package pgserver

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// BinVariable is the environment variable with the folder of the PostgreSQL binaries to use.
const BinVariable = "OUTBOXGEN_PG_BIN"

// places are the patterns of the folders that the usual packages install to, one per line. tools/need.sh and
// tools/postgres.sh read the same file.
//
//go:embed places.txt
var places string

// ErrNoBinaries is returned if this machine has no PostgreSQL server to start.
var ErrNoBinaries = errors.New("find PostgreSQL: no initdb and postgres on this machine; install them with " +
	"`apt-get install postgresql` (Debian, Ubuntu), `dnf install postgresql-server` (Fedora) or `brew install " +
	"postgresql` (macOS), " +
	"set " + BinVariable + " to their folder, or fetch them with `make postgres` in a checkout of outboxgen")

// Find returns the folder of initdb and postgres. It takes the first of these: OUTBOXGEN_PG_BIN, the folder that
// pg_config prints, the newest of the folders that the usual packages install to, the folder on PATH, the newest that
// tools/postgres.sh has fetched.
func Find() (string, error) {
	if dir := os.Getenv(BinVariable); dir != "" {
		if !hasServer(dir) {
			return "", fmt.Errorf("find PostgreSQL: %s=%s does not contain initdb and postgres", BinVariable, dir)
		}
		return dir, nil
	}
	for _, dir := range candidates() {
		if hasServer(dir) {
			return dir, nil
		}
	}
	return "", ErrNoBinaries
}

// candidates lists the folders to check, best first.
func candidates() []string {
	var dirs []string
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, pattern := range strings.Fields(places) {
		dirs = append(dirs, newest(pattern)...)
	}
	if initdb, err := exec.LookPath("initdb"); err == nil {
		dirs = append(dirs, filepath.Dir(initdb))
	}
	if cache := cacheDir(); cache != "" {
		dirs = append(dirs, newest(filepath.Join(cache, "postgres-*-"+platform(runtime.GOOS, runtime.GOARCH), "bin"))...)
	}
	return dirs
}

// cacheDir returns the folder that tools/postgres.sh fetches into, or "" if there is none.
func cacheDir() string {
	if dir := os.Getenv("OUTBOXGEN_CACHE"); dir != "" {
		return dir
	}
	if os.Geteuid() == 0 {
		return "/var/cache/outboxgen"
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "outboxgen")
	}
	if home := os.Getenv("HOME"); home != "" {
		return filepath.Join(home, ".cache", "outboxgen")
	}
	return ""
}

// platform returns the pattern of the builds that run here, with the names that tools/postgres.sh uses. A build for
// macOS runs on both kinds of processor.
func platform(system, processor string) string {
	switch {
	case system == "darwin":
		processor = "*"
	case processor == "amd64":
		processor = "x64"
	}
	return system + "-" + processor
}

// newest returns the folders that match pattern, the newest version first.
func newest(pattern string) []string {
	found, _ := filepath.Glob(pattern) // the only error is a bad pattern
	return newestFirst(found)
}

// newestFirst sorts folders named bin by the version in the name of the folder above, so that 18 comes before 9.6.
func newestFirst(dirs []string) []string {
	slices.SortStableFunc(dirs, func(a, b string) int { return slices.Compare(version(b), version(a)) })
	return dirs
}

// version returns the numbers in the name of the folder above bin.
func version(bin string) []int {
	var numbers []int
	for _, digits := range strings.FieldsFunc(filepath.Base(filepath.Dir(bin)), func(r rune) bool {
		return r < '0' || r > '9'
	}) {
		if n, err := strconv.Atoi(digits); err == nil {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// hasServer reports whether dir contains the two programs that a server needs.
func hasServer(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, name+exeSuffix))
		if err != nil || info.IsDir() {
			return false
		}
	}
	return true
}
