package report

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/outbox"
)

const (
	// every is how often a state that lasts is logged again, and how often at most that it has begun.
	every = time.Minute
	// quiet is how long a topic must not fail until it counts as recovered.
	quiet = 5 * time.Second
	// tick is how often a Log looks for topics that have recovered.
	tick = time.Second
	// persistent is how long statements fail until that is logged although a failure was logged less than a minute ago.
	persistent = 2 * time.Second
	// firstReminder is when statements that still fail are logged again. The time doubles up to longestReminder.
	firstReminder, longestReminder = 30 * time.Second, 10 * time.Minute
)

// Log logs the changes of state of a dispatcher or listener: that it starts and stops, that the database does not
// answer and answers again, that a topic fails and recovers. What lasts is counted, and logged once per minute. It is
// for concurrent use.
type Log struct {
	log      *slog.Logger
	now      func() time.Time
	troubles atomic.Int32 // topics and statements that fail

	mu         sync.Mutex
	totals     outbox.DrainReport
	statements map[string]*statement // by what they are for
	topics     map[string]*topic     // by "namespace/topic"
}

// NewLog returns a Log that writes to log, which must be one of usercode.Logger. now is the clock, usually time.Now.
func NewLog(log *slog.Logger, now func() time.Time) *Log {
	return &Log{log: log, now: now, statements: make(map[string]*statement), topics: make(map[string]*topic)}
}

// Run logs that the runner starts, with attrs, and when over is called, that it has stopped, with what it has done. In
// between it looks for what has ended.
func (l *Log) Run(runner string, attrs ...any) (over func(error)) {
	began := l.now()
	l.mu.Lock()
	l.totals = outbox.DrainReport{}
	l.mu.Unlock()
	l.log.Info(runner+" starts", attrs...)
	ctx, cancel := context.WithCancel(context.Background())
	var ticking sync.WaitGroup
	ticking.Go(func() {
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				l.Tick()
			}
		}
	})
	return func(err error) {
		cancel()
		ticking.Wait()
		l.Flush()
		l.mu.Lock()
		t := l.totals
		l.mu.Unlock()
		attrs := []any{
			"ran", l.now().Sub(began).Round(time.Millisecond), "delivered", t.Delivered, "retried", t.Retried, "dead", t.Dead,
			"lost", t.Lost, "handed_back", t.HandedBack,
		}
		if err != nil {
			l.log.Error(runner+" has stopped", append(attrs, "error", err)...)
			return
		}
		l.log.Info(runner+" has stopped", attrs...)
	}
}

// Add adds r to the totals of the runner.
func (l *Log) Add(r outbox.DrainReport) {
	l.mu.Lock()
	l.totals.Add(r)
	l.mu.Unlock()
}

// database is the statement that fails when the database does not answer, whatever the statement is for.
const database = ""

// statement is what is known of the statements for one thing, or of the database.
type statement struct {
	since    time.Time // when it began to fail; zero if it works
	said     bool      // its beginning was logged
	saidAt   time.Time // when a beginning was logged last
	reminder time.Time // when it is logged again
	pause    time.Duration
	failures int
}

// Listening returns what records the results of attempts to listen. If they have a pool of their own, they have their
// own state, because that pool may fail alone.
func (l *Log) Listening(ownPool bool) func(began time.Time, err error) {
	const what = "listen"
	return func(began time.Time, err error) {
		if err != nil && ownPool {
			l.fails(what, what, err)
			return
		}
		if err == nil && ownPool {
			l.works(what, began)
			return
		}
		l.Statement(what, began, err)
	}
}

// Statement records the result of a statement, or of several, that began at began. what says for what it is, such as
// "claim and settle". If the database does not answer, all of them share one state, which ends with the first of them
// that began later and succeeds.
func (l *Log) Statement(what string, began time.Time, err error) {
	if err == nil {
		if l.troubles.Load() > 0 {
			l.works(what, began)
			l.works(database, began)
		}
		return
	}
	if Unavailable(err) {
		l.fails(database, what, err)
		return
	}
	l.fails(what, what, err)
	l.works(database, began)
}

// answered are errors that say something about the answer of the database.
var answered = [...]error{outbox.ErrNotMigrated, outbox.ErrSequence, outbox.ErrRestored, pgx.ErrNoRows}

// Unavailable reports whether err says that the database does not answer, or not yet, or no more. Any other answer of
// it concerns the statement.
func Unavailable(err error) bool {
	var pg *pgconn.PgError
	var scan pgx.ScanArgError
	if !errors.As(err, &pg) {
		return !errors.As(err, &scan) && !slices.ContainsFunc(answered[:], func(is error) bool { return errors.Is(err, is) })
	}
	for _, class := range [...]string{"08", "53", "57P"} {
		if strings.HasPrefix(pg.Code, class) {
			return true
		}
	}
	return false
}

// LeaseLost records that the lease of a shard is lost. A statement for the same thing that succeeds ends this.
func (l *Log) LeaseLost(what string) { l.fails(what, what, outbox.ErrLeaseLost) }

func (l *Log) fails(key, during string, err error) {
	l.mu.Lock()
	s := l.statements[key]
	if s == nil {
		s = &statement{}
		l.statements[key] = s
	}
	now := l.now()
	if s.since.IsZero() {
		s.since, s.said, s.failures = now, false, 0
		l.troubles.Add(1)
	}
	s.failures++
	attrs := []any{"during", during}
	if s.failures > 1 {
		attrs = append(attrs, "failures", s.failures, "for", now.Sub(s.since).Round(time.Millisecond))
	}
	attrs = append(attrs, "error", err)
	text := ""
	switch {
	case !s.said && (s.saidAt.IsZero() || now.Sub(s.saidAt) >= every || now.Sub(s.since) >= persistent):
		s.said, s.saidAt, s.pause = true, now, firstReminder
		s.reminder = now.Add(s.pause)
		if text = "statement fails: it is tried again"; key == database {
			text = "database does not answer: it is tried again until it does"
		}
	case s.said && !now.Before(s.reminder):
		s.pause = min(2*s.pause, longestReminder)
		s.reminder = now.Add(s.pause)
		if text = "statement still fails"; key == database {
			text = "database still does not answer"
		}
	}
	l.mu.Unlock()
	if text == "" {
		l.log.Debug("statement failed", attrs...)
		return
	}
	l.log.Error(text, attrs...)
}

func (l *Log) works(key string, began time.Time) {
	l.mu.Lock()
	s := l.statements[key]
	if s == nil || s.since.IsZero() || began.Before(s.since) {
		l.mu.Unlock()
		return
	}
	lasted, said, failures := l.now().Sub(s.since).Round(time.Millisecond), s.said, s.failures
	s.since = time.Time{}
	l.troubles.Add(-1)
	l.mu.Unlock()
	if !said {
		return
	}
	if key == database {
		l.log.Info("database answers again", "after", lasted, "failures", failures)
		return
	}
	l.log.Info("statement succeeds again", "during", key, "after", lasted, "failures", failures)
}

// Kind is what can happen to an event that is not delivered.
type Kind int

// The kinds.
const (
	Failed  Kind = iota // it will be tried again
	Dead                // it is a dead letter
	Lost                // it was handled, and its lease was lost meanwhile
	Lapsed              // its lease is over, and its handler is cancelled
	Locked              // its lease cannot be renewed, because another transaction has locked its row
	Refused             // PostgreSQL refuses to settle it
	Waiting             // something that it needs is not there yet
	kinds
)

// texts are the names of the kinds in log lines, and what is logged when a topic begins to have events of a kind.
var texts = [kinds]struct {
	name, begin string
	level       slog.Level
}{
	Failed: {"failed", "topic fails", slog.LevelWarn},
	Dead:   {"dead", "topic has dead letters", slog.LevelError},
	Lost: {
		"lost", "events are lost: their leases ran out while they were handled, and they are handled again", slog.LevelWarn,
	},
	Lapsed: {"lapsed", "leases ran out: the handlers of their events are cancelled", slog.LevelWarn},
	Locked: {"locked", "leases cannot be renewed: another transaction has locked the events", slog.LevelWarn},
	Refused: {
		"refused", "events cannot be settled: PostgreSQL refuses to change them, and they are left to their leases",
		slog.LevelError,
	},
	Waiting: {"waiting", "events wait: what they need is not there yet", slog.LevelWarn},
}

// topic is what is known of a topic that fails.
type topic struct {
	since     time.Time // zero if it does not fail
	latest    time.Time // the latest failure
	delivered bool      // an event was delivered since
	said      bool      // anything was logged of it since
	saidAt    time.Time // when the latest line was logged
	begun     [kinds]time.Time
	in        [kinds]bool // this kind was logged since
	all, open [kinds]int  // since it began, and since the latest line
	event     string      // the id of the latest event that failed
	why       string      // and its error
}

// Trouble records what happened to an event, and why. text is the line about this event, at DEBUG.
func (l *Log) Trouble(k Kind, text string, e outbox.Event, why string) {
	attrs := []any{slog.Any("", e), "error", why}
	l.log.Debug(text, attrs...)
	l.mu.Lock()
	name := e.Namespace + "/" + e.Topic
	t := l.topics[name]
	if t == nil {
		t = &topic{}
		l.topics[name] = t
	}
	now := l.now()
	if t.since.IsZero() {
		*t = topic{since: now, saidAt: t.saidAt, begun: t.begun}
		l.troubles.Add(1)
	}
	t.latest, t.delivered, t.event, t.why = now, false, e.ID.String(), why
	t.all[k]++
	t.open[k]++
	var line func()
	if !t.in[k] && (t.begun[k].IsZero() || now.Sub(t.begun[k]) >= every) {
		t.in[k], t.begun[k], t.said = true, now, true
		if t.open[k]--; t.open == [kinds]int{} {
			t.saidAt = now
		}
		if k == Dead { // it says enough
			t.in[Failed] = true
		}
		line = func() { l.log.Log(context.Background(), texts[k].level, texts[k].begin, attrs...) }
	} else {
		line = l.summary(name, t, now, every)
	}
	l.mu.Unlock()
	if line != nil {
		line()
	}
}

// summary returns what logs the failures of t since its latest line, nil if there are none, or if that line is not
// older than age. The caller holds l.mu.
func (l *Log) summary(name string, t *topic, now time.Time, age time.Duration) func() {
	if t.open == [kinds]int{} || now.Sub(t.saidAt) < age {
		return nil
	}
	level := slog.LevelWarn
	attrs := append(nameAttrs(name), "for", now.Sub(t.since).Round(time.Second))
	for k, n := range t.open {
		if n > 0 {
			attrs = append(attrs, texts[k].name, n)
			level = max(level, texts[k].level)
		}
	}
	attrs = append(attrs, "event_id", t.event, "error", t.why)
	t.open, t.saidAt, t.said = [kinds]int{}, now, true
	return func() { l.log.Log(context.Background(), level, "topic still fails", attrs...) }
}

// nameAttrs are the attributes of a topic "namespace/topic".
func nameAttrs(name string) []any {
	namespace, topic, _ := strings.Cut(name, "/")
	return []any{"namespace", namespace, "topic", topic}
}

// Delivered records that an event of a topic was delivered.
func (l *Log) Delivered(e *outbox.Event) {
	if l.troubles.Load() == 0 {
		return
	}
	l.mu.Lock()
	if t := l.topics[e.Namespace+"/"+e.Topic]; t != nil {
		t.delivered = true
	}
	l.mu.Unlock()
}

// Tick logs what is due: the failures of the latest minute, and topics that have recovered.
func (l *Log) Tick() {
	if l.troubles.Load() > 0 {
		l.check(every)
	}
}

// Flush logs the failures that were not logged yet.
func (l *Log) Flush() { l.check(0) }

// check logs the topics that have recovered, and the failures of those whose latest line is older than age.
func (l *Log) check(age time.Duration) {
	var lines []func()
	l.mu.Lock()
	now := l.now()
	for name, t := range l.topics {
		switch {
		case t.since.IsZero():
		case t.delivered && (age == 0 || now.Sub(t.latest) >= quiet):
			attrs := append(nameAttrs(name), "after", t.latest.Sub(t.since).Round(time.Millisecond))
			for k, n := range t.all {
				if n > 0 {
					attrs = append(attrs, texts[k].name, n)
				}
			}
			if t.since = (time.Time{}); t.said {
				lines = append(lines, func() { l.log.Info("topic recovers", attrs...) })
			}
			l.troubles.Add(-1)
		default:
			if line := l.summary(name, t, now, age); line != nil {
				lines = append(lines, line)
			}
		}
	}
	l.mu.Unlock()
	for _, line := range lines {
		line()
	}
}

// Topics returns the names of topics for a log line.
func Topics(names []string) string { return strings.Join(slices.Sorted(slices.Values(names)), ",") }
