// Package heartbeat says in the database which dispatchers and listeners run, and what rests in them.
package heartbeat

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/machine/testsignal"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

const (
	// Every is how often a process renews its row.
	Every = 30 * time.Second
	// AliveFor is how long after its latest renewal a process counts as alive: two renewals may fail or be late.
	AliveFor = 3 * Every

	// changeEvery limits how often a change of what rests renews the row.
	changeEvery = time.Second
	// beatTimeout limits one renewal, and stopTimeout what the row may take of a graceful stop.
	beatTimeout, stopTimeout = 5 * time.Second, 500 * time.Millisecond
)

// The kinds of processes.
const (
	Dispatcher = "dispatcher"
	Listener   = "listener"
)

// Topic is what a process knows of a topic.
type Topic struct {
	Version int     `json:"version"`
	MaxLag  float64 `json:"max_lag,omitempty"` // seconds; 0 if it has none
	// Limits are those that the process declares, and AtOnce is how many events it handles at once at most. A topic without
	// limits has neither.
	Limits []Limit `json:"limits,omitempty"`
	AtOnce int     `json:"at_once,omitempty"`
}

// Limit is a limit of a topic. 0 means that it has no such bound.
type Limit struct {
	Per         string  `json:"per,omitempty"`
	Concurrency int     `json:"concurrency,omitempty"`
	Rate        int     `json:"rate,omitempty"`
	Period      float64 `json:"period,omitempty"` // seconds
}

// Heart keeps the row of one dispatcher or listener while it runs.
type Heart struct {
	DB        *schemadb.Schema
	Pool      *pgxpool.Pool
	Log       *slog.Logger
	WorkerID  uuid.UUID
	Kind      string
	Name      string           // the namespace or the listener
	Topics    map[string]Topic // by namespace/topic
	TenantIDs []uuid.UUID      // nil means all
	// Resting returns what rests, each with the reason.
	Resting func() map[string]string
	// Changed has an element when what rests may have changed.
	Changed <-chan struct{}
	// Every is how often the row is renewed; 0 means the constant Every.
	Every time.Duration
	// Listed is called when the row was written for the first time; nil calls nobody.
	Listed func()
	// Beat tells a test that the row was written, or could not be.
	Beat testsignal.Signal
}

// Run writes the row, and renews it until ctx ends. Then it deletes the row, which takes stopTimeout at most. An error
// of the database is logged when it is the first one, and changes nothing else: the process works without its row.
func (h *Heart) Run(ctx context.Context) {
	end, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the row may take no more time
	var limiter sync.WaitGroup
	limiter.Go(func() { limitStop(ctx, end, cancel) })
	defer limiter.Wait()
	defer cancel()
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	topics, err := json.Marshal(h.Topics)
	if err != nil { // cannot happen: names, numbers
		h.Log.Error("say what runs", "error", err)
		return
	}
	p := queries.ProcessBeatParams{
		WorkerID: pgvalue.UUID(h.WorkerID), Kind: h.Kind, Name: h.Name, Host: host, Pid: int32(os.Getpid()), Topics: topics,
		Starts: true,
	}
	if h.TenantIDs != nil {
		p.TenantIds = pgvalue.UUIDs(h.TenantIDs)
	}
	h.Every = cmp.Or(h.Every, Every)
	failing := false
	for {
		err := h.beat(end, &p)
		refused := err != nil && !report.Unavailable(err) // a database that is unavailable is what claims and leases log
		switch {
		case err == nil && failing:
			h.Log.Info("the row in the table processes is renewed again")
		case !failing && refused && ctx.Err() == nil:
			h.Log.Warn("cannot write to the table processes: this process works, but outboxgen status and alerts do not see it",
				"error", err)
		}
		if err == nil && h.Listed != nil {
			h.Listed()
			h.Listed = nil
		}
		failing = err != nil && (failing || refused)
		h.Beat.Emit()
		if !h.wait(ctx) {
			break
		}
	}
	_ = h.DB.EachPlanned(h.Pool).ProcessEnd(end, queries.ProcessEndParams{ // otherwise it is deleted when it is old
		Kind: p.Kind, Name: p.Name, WorkerID: p.WorkerID, Host: p.Host, Pid: p.Pid,
	})
}

// limitStop calls cancel a stopTimeout after ctx has ended, unless end comes first.
func limitStop(ctx, end context.Context, cancel func()) {
	select {
	case <-ctx.Done():
	case <-end.Done():
		return
	}
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-timer.C:
		cancel()
	case <-end.Done():
	}
}

// beat writes the row.
func (h *Heart) beat(ctx context.Context, p *queries.ProcessBeatParams) (err error) {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	conn, err := h.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	resting, encoding := make(map[string]string), errclass.EncodingOf(conn.Conn())
	for name, why := range h.Resting() {
		resting[name] = errclass.Storable(why, encoding)
	}
	if p.Resting, err = json.Marshal(resting); err != nil {
		return err
	}
	if err = h.DB.EachPlanned(conn).ProcessBeat(ctx, *p); err == nil {
		p.Starts = false
	}
	return h.DB.Wrap("say what runs", err)
}

// wait waits until the row is to be renewed. It returns false when ctx ends.
func (h *Heart) wait(ctx context.Context) bool {
	timer := time.NewTimer(backoff.Around(h.Every))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	case <-h.Changed:
	}
	pause := time.NewTimer(min(changeEvery, h.Every)) // others may follow
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-pause.C:
	}
	select {
	case <-h.Changed:
	default:
	}
	return true
}
