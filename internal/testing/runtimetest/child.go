package runtimetest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// Child is a process that runs TestChild.
type Child struct {
	Cmd   *exec.Cmd
	Input io.WriteCloser
	Lines chan string // closed when the process ends
	Wait  func() error
}

// ChildURL returns the URL of pool's database for a child. The sessions of the child have a name by which they are
// found.
func ChildURL(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	u, err := url.Parse(pgtest.URL(t, pool))
	require.NoError(t, err)
	query := u.Query()
	query.Set("application_name", "child")
	u.RawQuery = query.Encode()
	return u.String()
}

// Spawn starts this test program as a child that runs one function. The child gets its orders in an environment
// variable.
func Spawn(t testing.TB, function, variable string, orders any) *Child {
	t.Helper()
	text, err := json.Marshal(orders)
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	c := &Child{Cmd: exec.Command(self, "-test.run=^"+function+"$", "-test.count=1"), Lines: make(chan string, 10_000)}
	c.Cmd.Env = append(os.Environ(), variable+"="+string(text))
	c.Cmd.Stderr = os.Stderr
	c.Input, err = c.Cmd.StdinPipe()
	require.NoError(t, err)
	output, err := c.Cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(c.Lines)
		for in := bufio.NewScanner(output); in.Scan(); {
			c.Lines <- in.Text()
		}
	}()
	c.Wait = sync.OnceValue(func() error {
		<-read
		return c.Cmd.Wait()
	})
	t.Cleanup(func() { c.Kill() })
	return c
}

func (c *Child) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	require.NoError(t, c.Cmd.Process.Signal(s))
}

// Kill ends the process as a crash would and waits for its end.
func (c *Child) Kill() {
	_ = c.Cmd.Process.Kill() // the only error is that it has already ended
	go func() {
		for range c.Lines { // read to the end
		}
	}()
	_ = c.Wait()
}

// Await reads to the next line that contains part. It returns "" if the process ends first.
func (c *Child) Await(t testing.TB, part string) string {
	t.Helper()
	timeout := time.NewTimer(pgtest.Patience)
	defer timeout.Stop()
	for {
		select {
		case line, ok := <-c.Lines:
			if !ok || strings.Contains(line, part) {
				return line
			}
		case <-timeout.C:
			require.FailNow(t, "timeout", "waited %s for %q", pgtest.Patience, part)
		}
	}
}

const Handling = `"msg":"handling"`

func (c *Child) Tell(t testing.TB, line string) {
	t.Helper()
	_, err := fmt.Fprintln(c.Input, line)
	require.NoError(t, err)
}

// Rounds returns how often a random test repeats: few, or the value of OUTBOXGEN_CHAOS_ROUNDS.
func Rounds(few int) int {
	if n, err := strconv.Atoi(os.Getenv("OUTBOXGEN_CHAOS_ROUNDS")); err == nil {
		return n
	}
	return few
}

// Attempts returns how many attempts a random test makes at least: the value of OUTBOXGEN_CHAOS_ATTEMPTS, or 0.
func Attempts() int {
	n, _ := strconv.Atoi(os.Getenv("OUTBOXGEN_CHAOS_ATTEMPTS"))
	return n
}

// CrashLease is short enough for a test to wait for, and long enough to be renewed in time on a busy machine.
const CrashLease = 5 * time.Second

// ChildIsGone waits until the server has ended the sessions of a killed child, so that none of its statements is under
// way any more.
func ChildIsGone(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Settles(t, pool, 0,
		"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'child'")
}
