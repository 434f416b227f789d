package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"
)

// BinVariable is the environment variable with the folder of the PostgreSQL binaries to use.
const BinVariable = "OUTBOXGEN_PG_BIN"

// ErrNoBinaries is returned if this machine has no PostgreSQL server to start.
var ErrNoBinaries = errors.New("find PostgreSQL: no initdb and postgres on this machine; install them with " +
	"`apt-get install postgresql` (Debian, Ubuntu), `dnf install postgresql-server` (Fedora) or `brew install postgresql` (macOS), " +
	"or set " + BinVariable + " to their folder")

// Find returns the folder of initdb and postgres. It takes the first of these: OUTBOXGEN_PG_BIN, the folder that pg_config
// prints, the newest of the folders that the usual packages install to, the folder on PATH.
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
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
		"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		found, _ := filepath.Glob(pattern) // the only error is a bad pattern
		dirs = append(dirs, newestFirst(found)...)
	}
	if initdb, err := exec.LookPath("initdb"); err == nil {
		dirs = append(dirs, filepath.Dir(initdb))
	}
	return dirs
}

// newestFirst sorts folders by the major version in their path, so that 18 comes before 9.6.
func newestFirst(dirs []string) []string {
	sort.SliceStable(dirs, func(i, j int) bool { return majorIn(dirs[i]) > majorIn(dirs[j]) })
	return dirs
}

// majorIn returns the first number in path, or 0 without one.
func majorIn(path string) int {
	digits := func(r rune) bool { return r < '0' || r > '9' }
	for _, number := range strings.FieldsFunc(path, digits) {
		if n, err := strconv.Atoi(number); err == nil {
			return n
		}
	}
	return 0
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
