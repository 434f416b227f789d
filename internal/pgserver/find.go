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

// BinVariable names the environment variable that says which folder of PostgreSQL binaries to use.
const BinVariable = "OUTBOXGEN_PG_BIN"

// ErrNoBinaries is returned when this machine has no PostgreSQL server to start.
var ErrNoBinaries = errors.New("find PostgreSQL: no initdb and postgres on this machine; install them with " +
	"`apt-get install postgresql` (Debian, Ubuntu), `dnf install postgresql-server` (Fedora) or `brew install postgresql` (macOS), " +
	"or name their folder in " + BinVariable)

// Find returns the folder that holds initdb and postgres: OUTBOXGEN_PG_BIN, else what pg_config
// says, else the newest of the folders that the usual packages install to, else the one on PATH.
func Find() (string, error) {
	if dir := os.Getenv(BinVariable); dir != "" {
		if !hasServer(dir) {
			return "", fmt.Errorf("find PostgreSQL: %s=%s holds no initdb and postgres", BinVariable, dir)
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

// candidates lists the folders worth a look, best first.
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

// majorIn returns the first number in path, 0 when there is none.
func majorIn(path string) int {
	digits := func(r rune) bool { return r < '0' || r > '9' }
	for _, number := range strings.FieldsFunc(path, digits) {
		if n, err := strconv.Atoi(number); err == nil {
			return n
		}
	}
	return 0
}

// hasServer reports whether dir holds the two programs that a server needs.
func hasServer(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, name+exeSuffix))
		if err != nil || info.IsDir() {
			return false
		}
	}
	return true
}
