package outbox_test

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

	"github.com/outboxgen/outboxgen/internal/pgtest"
)

// child is a process that runs TestChild.
type child struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	lines chan string // closed at its end
	wait  func() error
}

// childURL is the database of pool for a child, whose sessions are known by their name.
func childURL(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	u, err := url.Parse(pgtest.URL(t, pool))
	require.NoError(t, err)
	query := u.Query()
	query.Set("application_name", "child")
	u.RawQuery = query.Encode()
	return u.String()
}

// spawn starts this very test program as a child that runs one function, and finds its orders in a variable.
func spawn(t testing.TB, function, variable string, orders any) *child {
	t.Helper()
	text, err := json.Marshal(orders)
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	c := &child{cmd: exec.Command(self, "-test.run=^"+function+"$", "-test.count=1"), lines: make(chan string, 10_000)}
	c.cmd.Env = append(os.Environ(), variable+"="+string(text))
	c.cmd.Stderr = os.Stderr
	c.input, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	output, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(c.lines)
		for in := bufio.NewScanner(output); in.Scan(); {
			c.lines <- in.Text()
		}
	}()
	c.wait = sync.OnceValue(func() error {
		<-read
		return c.cmd.Wait()
	})
	t.Cleanup(func() { c.kill() })
	return c
}

func (c *child) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	require.NoError(t, c.cmd.Process.Signal(s))
}

// kill ends the process as a crash would and waits for its end.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // the only error is that it has ended
	go func() {
		for range c.lines { // nobody reads on
		}
	}()
	_ = c.wait()
}

// await reads on to the next line that holds part; "" when the process has ended before.
func (c *child) await(t testing.TB, part string) string {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		select {
		case line, ok := <-c.lines:
			if !ok || strings.Contains(line, part) {
				return line
			}
		case <-timeout.C:
			require.FailNow(t, "timeout", "waited %s for %q", patience, part)
		}
	}
}

const handling = `"msg":"handling"`

func (c *child) tell(t testing.TB, line string) {
	t.Helper()
	_, err := fmt.Fprintln(c.input, line)
	require.NoError(t, err)
}

// rounds returns how often a random test repeats: few, or as many as OUTBOXGEN_CHAOS_ROUNDS says.
func rounds(few int) int {
	if n, err := strconv.Atoi(os.Getenv("OUTBOXGEN_CHAOS_ROUNDS")); err == nil {
		return n
	}
	return few
}

// crashLease is a lease that a test can wait for and a busy machine can keep.
const crashLease = 5 * time.Second

// childIsGone waits until the server has noticed that a child which was killed is not there, so that nothing of its is
// under way any more.
func childIsGone(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	settles(t, pool, 0, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'child'")
}
