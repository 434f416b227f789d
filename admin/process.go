package admin

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/machine/heartbeat"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/outbox"
)

// ProcessKind is what a Process runs.
type ProcessKind string

// The kinds.
const (
	ProcessDispatcher ProcessKind = heartbeat.Dispatcher
	ProcessListener   ProcessKind = heartbeat.Listener
)

// Process is a running dispatcher or listener: one call of Run. A process that was killed stays in the list for an hour
// if another one of its kind and name runs, otherwise for as long as WithGoneAfter says, and is not Alive.
type Process struct {
	WorkerID uuid.UUID   `json:"worker_id"`
	Kind     ProcessKind `json:"kind"`
	Name     string      `json:"name"` // the namespace of a dispatcher, or the name of a listener
	Host     string      `json:"host"`
	PID      int         `json:"pid"`
	// Topics are what it takes, by namespace/topic. JSON leaves them out.
	Topics map[string]ProcessTopic `json:"-"`
	// TenantIDs are the only tenants whose events it takes; nil means all.
	TenantIDs []uuid.UUID `json:"tenant_ids,omitzero"`
	// Resting has the topics and destinations that rest in this process, each with the reason.
	Resting map[string]string `json:"resting,omitempty"`
	// StartedAt and SeenAt are times by the clock of the database. The process renews SeenAt every half minute.
	StartedAt time.Time `json:"started_at"`
	SeenAt    time.Time `json:"seen_at"`
	// Alive reports that it was seen in the last 90 s.
	Alive bool `json:"alive"`
}

// ProcessTopic is what a process knows of a topic.
type ProcessTopic struct {
	// Version is the newest payload version that it handles.
	Version int
	// MaxLag is the bound in the YAML of a queue topic; 0 if it has none. Listeners have their own, in ListenerStatus.
	MaxLag time.Duration
	// Limits are those in the YAML of the process, in its order; the limits in force may be others: see LimitStatus. Nil
	// means that it has none, or was built before there were limits.
	Limits []outbox.Limit
	// AtOnce is how many events of a topic with Limits it handles at once at most; 0 without Limits.
	AtOnce int
}

// DefaultGoneAfter is how long a process that is gone is listed, unless WithGoneAfter says otherwise.
const DefaultGoneAfter = 24 * time.Hour

// WithGoneAfter returns an Admin that leaves out processes which were last seen longer ago than d: of its lists, of the
// overview and of Doctor. d must be positive. Running processes delete the row of a process that is gone after an hour,
// if they have the same kind and name, and any row after 30 days.
func (a *Admin) WithGoneAfter(d time.Duration) *Admin {
	b := *a
	b.goneAfter = max(d, time.Microsecond)
	return &b
}

// Processes lists the dispatchers and listeners that run, by kind, name and start. It also lists those that are gone,
// for as long as WithGoneAfter says.
func (a *Admin) Processes(ctx context.Context) ([]Process, error) {
	all, err := processesOf(ctx, a.db.Each(a.pool), a.goneAfter)
	return all, a.db.Wrap("list processes", err)
}

func processesOf(ctx context.Context, q *queries.Queries, goneAfter time.Duration) ([]Process, error) {
	rows, err := q.ProcessList(ctx, pgvalue.Interval(goneAfter))
	if err != nil {
		return nil, err
	}
	all := make([]Process, len(rows))
	for i, r := range rows {
		p := Process{
			WorkerID: r.WorkerID.Bytes, Kind: ProcessKind(r.Kind), Name: r.Name, Host: r.Host, PID: int(r.Pid),
			StartedAt: r.StartedAt.Time.UTC(), SeenAt: r.SeenAt.Time.UTC(), Alive: microseconds(r.AgeUs) <= heartbeat.AliveFor,
		}
		for _, id := range r.TenantIds {
			p.TenantIDs = append(p.TenantIDs, id.Bytes)
		}
		// What has another form was written by hand. It must not hide the other processes.
		var topics map[string]json.RawMessage
		_ = json.Unmarshal(r.Topics, &topics)
		p.Topics = make(map[string]ProcessTopic, len(topics))
		for name, text := range topics {
			var t heartbeat.Topic
			_ = json.Unmarshal(text, &t)
			known := ProcessTopic{Version: t.Version, MaxLag: seconds(t.MaxLag), AtOnce: t.AtOnce}
			for _, l := range t.Limits {
				known.Limits = append(known.Limits, outbox.Limit{
					Per: l.Per, Concurrency: l.Concurrency, Rate: outbox.Rate{Events: l.Rate, Period: seconds(l.Period)},
				})
			}
			p.Topics[name] = known
		}
		_ = json.Unmarshal(r.Resting, &p.Resting)
		all[i] = p
	}
	return all, nil
}

func seconds(n float64) time.Duration {
	return time.Duration(n * float64(time.Second)).Round(time.Microsecond)
}

// aliveProcesses returns those of all that are alive.
func aliveProcesses(ctx context.Context, q *queries.Queries) ([]Process, error) {
	all, err := processesOf(ctx, q, heartbeat.AliveFor)
	return slices.DeleteFunc(all, func(p Process) bool { return !p.Alive }), err
}

// Resting is a topic that rests in a process.
type Resting struct {
	WorkerID uuid.UUID `json:"worker_id"`
	Reason   string    `json:"reason"`
}
