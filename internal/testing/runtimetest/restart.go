package runtimetest

import (
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
)

// Restarts is a migrated database on a server that is stopped and started again while a receiver applies messages.
type Restarts struct {
	Pool *pgxpool.Pool
	Log  *LogSpy // of the receiver

	server      *pgserver.Server
	armed       atomic.Bool
	hit, resume chan struct{}
}

// Outages is how often Restarts stops its server: it is shut down, stopped without a checkpoint, and killed.
const Outages = 3

// NewRestarts returns a database in which sql has run.
func NewRestarts(t testing.TB, sql string) *Restarts {
	t.Helper()
	r := &Restarts{
		Log: NewLogSpy(), server: pgtest.Server(t, pgserver.Options{}), hit: make(chan struct{}), resume: make(chan struct{}),
	}
	r.Pool = pgtest.Pool(t, r.server.URL())
	conn, err := r.Pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = migrate.Up(t.Context(), conn.Conn(), pgtest.Schema)
	require.NoError(t, err)
	pgtest.Execute(t, r.Pool, sql)
	return r
}

// Effect stops in the middle of one transaction per outage. The method of the consumer calls it.
func (r *Restarts) Effect() {
	if r.armed.CompareAndSwap(true, false) {
		r.hit <- struct{}{}
		<-r.resume
	}
}

// Run stops the server while the receiver applies n messages that put stores, once per outage. noticed waits until the
// receiver has noticed it. All messages must have their effects, none may be kept, and the log has a few lines per
// outage.
func (r *Restarts) Run(t testing.TB, n int, put, noticed func(outage int)) {
	t.Helper()
	for i := range Outages {
		r.armed.Store(true)
		put(i)
		pgtest.Receive(t, r.hit, "an effect")
		switch i {
		case 0:
			process, err := os.FindProcess(r.server.Pid())
			require.NoError(t, err)
			require.NoError(t, process.Signal(syscall.SIGINT)) // what `pg_ctl -m fast` sends
		case 1:
			require.NoError(t, r.server.Restart()) // stops it in immediate mode
		case 2:
			require.NoError(t, r.server.Kill())
		}
		r.resume <- struct{}{}
		if i == 1 {
			noticed(i)
		} else {
			r.Log.Await(t, "messages wait: the database or a target does not answer")
			noticed(i)
			require.NoError(t, r.server.Restart())
			r.Log.Await(t, "messages do not wait any more")
		}
		pgtest.Settles(t, r.Pool, (i+1)*n, "SELECT count(*) FROM effects")
		r.noneWaits(t)
	}
	require.Zero(t, pgtest.Count(t, r.Pool, "SELECT count(*) FROM outbox.inbox_messages"))
	troubles := 0
	for _, line := range r.Log.Lines() {
		if !strings.Contains(line, "level=INFO") {
			troubles++
		}
	}
	require.LessOrEqual(t, troubles, 5*Outages, "lines per outage:\n%s", r.Log)
}

// noneWaits waits until nothing of the receiver waits for the database. What still waits when the next outage begins has
// no reason to say so again.
func (r *Restarts) noneWaits(t testing.TB) {
	t.Helper()
	lines := func(text string) (n int) {
		for _, line := range r.Log.Lines() {
			if strings.Contains(line, text) {
				n++
			}
		}
		return n
	}
	require.Eventually(t, func() bool {
		return lines("messages wait: ") == lines("messages do not wait any more")
	}, pgtest.Patience, 10*time.Millisecond, "%s", r.Log)
}
