package report

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// clocked is a Log with a clock that the test moves.
type clocked struct {
	*Log
	text bytes.Buffer
	at   time.Time
}

func newClocked() *clocked {
	c := &clocked{at: time.Now()}
	c.Log = NewLog(slog.New(slog.NewTextHandler(&c.text, nil)), func() time.Time { return c.at })
	return c
}

var volatile = regexp.MustCompile(`time=\S+ |event_id=\S+ |attempt=\S+ `)

// lines returns what was logged since the last call, without times and ids.
func (c *clocked) lines() []string {
	text := strings.TrimSuffix(volatile.ReplaceAllString(c.text.String(), ""), "\n")
	c.text.Reset()
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

var errRefusedConnection = errors.New("connection refused")

// TestAnOutageIsTwoLines: whatever fails meanwhile, an outage of ten seconds is one line at its beginning and one at its end.
func TestAnOutageIsTwoLines(t *testing.T) {
	t.Parallel()
	c := newClocked()
	for range 100 {
		for _, what := range []string{"claim and settle", "renew leases", "sweep", "listen"} {
			c.Statement(what, c.at, errRefusedConnection)
		}
		c.Tick()
		c.at = c.at.Add(100 * time.Millisecond)
	}
	c.Statement("claim and settle", c.at.Add(-time.Minute), nil) // it began before the outage
	c.Statement("claim and settle", c.at, nil)
	c.Statement("renew leases", c.at, nil)
	require.Equal(t, []string{
		`level=ERROR msg="database does not answer: it is tried again until it does" during="claim and settle" error="connection refused"`,
		`level=INFO msg="database answers again" after=10s failures=400`,
	}, c.lines())
}

// TestALongOutageIsRepeatedSeldom: after 30 s, and then at growing intervals.
func TestALongOutageIsRepeatedSeldom(t *testing.T) {
	t.Parallel()
	c := newClocked()
	for range 8 * 3600 {
		c.Statement("claim and settle", c.at, errRefusedConnection)
		c.at = c.at.Add(time.Second)
	}
	lines := c.lines()
	require.Less(t, len(lines), 60)
	require.Contains(t, lines[1], `msg="database still does not answer" during="claim and settle" failures=31 for=30s`)
	require.Contains(t, lines[2], "for=1m30s")
}

// TestFlappingIsFewLines: failures and successes in turn.
func TestFlappingIsFewLines(t *testing.T) {
	t.Parallel()
	c := newClocked()
	for range 600 { // ten minutes
		c.Statement("claim and settle", c.at, errRefusedConnection)
		c.Statement("renew leases", c.at, nil)
		c.at = c.at.Add(time.Second)
	}
	require.LessOrEqual(t, len(c.lines()), 20)
	// But an outage that begins right after another is said when it lasts.
	c.Statement("claim and settle", c.at, errRefusedConnection)
	c.Statement("claim and settle", c.at, nil)
	_ = c.lines()
	for range 5 {
		c.at = c.at.Add(time.Second)
		c.Statement("claim and settle", c.at, errRefusedConnection)
	}
	require.Len(t, c.lines(), 1)
}

// TestStatementsFailAlone: an error that is not the database's absence concerns one statement, until this one succeeds.
func TestStatementsFailAlone(t *testing.T) {
	t.Parallel()
	c := newClocked()
	denied := fmt.Errorf("prune: %w", &pgconn.PgError{Code: "42501", Message: "permission denied"})
	for range 10 {
		c.Statement("prune", c.at, denied)
		c.Statement("claim and settle", c.at, nil)
	}
	require.Equal(t, []string{`level=ERROR msg="statement fails: it is tried again" during=prune error="prune: : permission denied (SQLSTATE 42501)"`}, c.lines())
	c.Statement("prune", c.at, nil)
	require.Equal(t, []string{`level=INFO msg="statement succeeds again" during=prune after=0s failures=10`}, c.lines())
	for _, code := range []string{"57P01", "57P03", "53300", "08006"} {
		require.True(t, Unavailable(&pgconn.PgError{Code: code}), code)
	}
	require.True(t, Unavailable(&pgconn.ConnectError{}))
	require.False(t, Unavailable(fmt.Errorf("it is at 2: %w", outbox.ErrSequence)))
	c.Statement("claim and settle", c.at, errRefusedConnection)
	_ = c.lines()
	c.Statement("prune", c.at, denied)
	require.Contains(t, c.lines()[0], "database answers again", "with an error")
}

// TestListeningFailsAlone: with a separate pool the listening connection says nothing about the database.
func TestListeningFailsAlone(t *testing.T) {
	t.Parallel()
	c := newClocked()
	own := c.Listening(true)
	for range 10 {
		own(c.at, errRefusedConnection)
		c.Statement("claim and settle", c.at, nil)
	}
	own(c.at, nil)
	require.Equal(t, []string{
		`level=ERROR msg="statement fails: it is tried again" during=listen error="connection refused"`,
		`level=INFO msg="statement succeeds again" during=listen after=0s failures=10`,
	}, c.lines())
	shared := c.Listening(false)
	shared(c.at, errRefusedConnection)
	c.Statement("claim and settle", c.at, nil)
	require.Len(t, c.lines(), 2)
	require.Zero(t, c.troubles.Load())
}

func event() outbox.Event {
	return outbox.Event{Namespace: "shop", Topic: "paid", ID: uuid.New(), Attempt: 1}
}

// TestFailingEventsAreCounted: 50,000 failures within two minutes and a half are four lines, then the recovery is one.
func TestFailingEventsAreCounted(t *testing.T) {
	t.Parallel()
	c := newClocked()
	e := event()
	for i := range 50_000 {
		c.Trouble(Failed, "event failed", e, "no route")
		if i%5 == 4 {
			c.Trouble(Dead, "event is dead", e, "no route")
		}
		c.at = c.at.Add(3 * time.Millisecond)
		c.Tick()
	}
	require.Equal(t, []string{
		`level=WARN msg="topic fails" namespace=shop topic=paid error="no route"`,
		`level=ERROR msg="topic has dead letters" namespace=shop topic=paid error="no route"`,
		`level=ERROR msg="topic still fails" namespace=shop topic=paid for=1m0s failed=19999 dead=3999 error="no route"`,
		`level=ERROR msg="topic still fails" namespace=shop topic=paid for=2m0s failed=20000 dead=4000 error="no route"`,
	}, c.lines())
	c.Delivered(&e)
	c.Tick()
	require.Empty(t, c.lines(), "it may fail again immediately")
	c.at = c.at.Add(quiet)
	c.Tick()
	require.Equal(t, []string{`level=INFO msg="topic recovers" namespace=shop topic=paid after=2m29.997s failed=50000 dead=10000`}, c.lines())
	require.Zero(t, c.troubles.Load())
}

// TestATopicThatFailsNowAndThen: failures among successes do not end the state, and cost at most two lines per minute.
func TestATopicThatFailsNowAndThen(t *testing.T) {
	t.Parallel()
	for _, between := range []time.Duration{100 * time.Millisecond, 6 * time.Second} {
		c := newClocked()
		e := event()
		for began := c.at; c.at.Sub(began) < 10*time.Minute; c.at = c.at.Add(between / 2) {
			c.Trouble(Failed, "event failed", e, "no route")
			c.at = c.at.Add(between / 2)
			c.Delivered(&e)
			c.Tick()
		}
		require.LessOrEqual(t, len(c.lines()), 25, between)
	}
}

// TestFlushSaysTheRest: the end of a run or drain says what was not said yet.
func TestFlushSaysTheRest(t *testing.T) {
	t.Parallel()
	c := newClocked()
	over := c.Run("dispatcher", "topics", "paid")
	e := event()
	for range 3 {
		c.Trouble(Failed, "event failed", e, "no route")
	}
	c.Trouble(Lost, "event lost", e, "lease lost")
	c.Add(outbox.DrainReport{Delivered: 2, Retried: 3, Lost: 1})
	over(nil)
	require.Equal(t, []string{
		`level=INFO msg="dispatcher starts" topics=paid`,
		`level=WARN msg="topic fails" namespace=shop topic=paid error="no route"`,
		`level=WARN msg="events are lost: their leases ran out while they were handled, and they are handled again" namespace=shop topic=paid error="lease lost"`,
		`level=WARN msg="topic still fails" namespace=shop topic=paid for=0s failed=2 error="lease lost"`,
		`level=INFO msg="dispatcher has stopped" ran=0s delivered=2 retried=3 dead=0 lost=1 handed_back=0`,
	}, c.lines())
	over = c.Run("dispatcher")
	over(errors.New("still running"))
	require.Contains(t, c.lines()[1], `level=ERROR msg="dispatcher has stopped" ran=0s delivered=0`, "the totals of this run")
}

// TestDeliveredCostsNothing: the path of an event that is delivered allocates nothing.
func TestDeliveredCostsNothing(t *testing.T) {
	c := newClocked()
	e := event()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		c.Delivered(&e)
		c.Statement("claim and settle", c.at, nil)
		c.Tick()
	}))
}
