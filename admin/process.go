package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/dbsqlc"
	"github.com/outboxgen/outboxgen/internal/pgvalue"
)

// Process is a running dispatcher or listener. It has renewed its row in processes within the last ninety seconds, so one
// that died is listed for so long.
type Process struct {
	WorkerID uuid.UUID
	// Kind is "dispatcher" or "listener", and Name the namespace or the listener that it runs.
	Kind, Name string
	Host       string
	PID        int
	// Topics are those that it takes, by "namespace/topic".
	Topics map[string]ProcessTopic
	// TenantIDs are the only tenants whose events it takes; nil means all.
	TenantIDs []uuid.UUID
	// Resting has the topics and destinations that rest, each with the reason.
	Resting           map[string]string
	StartedAt, SeenAt time.Time
}

// ProcessTopic is what a process knows of a topic.
type ProcessTopic struct {
	Version int           // the version that its code was generated from
	MaxLag  time.Duration // 0 means no alarm
}

// Resting is a topic that rests in a process.
type Resting struct {
	WorkerID uuid.UUID
	Reason   string
}

// Pause is what an operator has paused: a namespace, a topic of it, a tenant everywhere or in one of these, or a listener.
type Pause struct {
	Namespace, Topic string
	TenantID         uuid.NullUUID
	Listener         string
	Since            time.Time
	Until            time.Time // zero means until it is resumed
	Who, Why         string
}

// The kinds of processes.
const (
	kindDispatcher = "dispatcher"
	kindListener   = "listener"
)

// aliveFor is how long ago an alive process was seen: three renewals.
const aliveFor = 90 * time.Second

func aliveProcesses(ctx context.Context, q *dbsqlc.Queries) ([]Process, error) {
	rows, err := q.AliveProcesses(ctx, pgvalue.Interval(aliveFor))
	if err != nil {
		return nil, err
	}
	processes := make([]Process, len(rows))
	for i, r := range rows {
		p := Process{
			WorkerID: r.WorkerID.Bytes, Kind: r.Kind, Name: r.Name, Host: r.Host, PID: int(r.Pid),
			Topics: make(map[string]ProcessTopic), StartedAt: r.StartedAt.Time, SeenAt: r.SeenAt.Time,
		}
		var topics map[string]struct {
			Version int     `json:"version"`
			MaxLag  float64 `json:"max_lag"`
		}
		if err := json.Unmarshal(r.Topics, &topics); err != nil {
			return nil, fmt.Errorf("topics of process %s: %w", p.WorkerID, err)
		}
		for name, t := range topics {
			p.Topics[name] = ProcessTopic{Version: t.Version, MaxLag: time.Duration(t.MaxLag * float64(time.Second))}
		}
		if err := json.Unmarshal(r.Resting, &p.Resting); err != nil {
			return nil, fmt.Errorf("resting of process %s: %w", p.WorkerID, err)
		}
		if r.TenantIds != nil {
			p.TenantIDs = make([]uuid.UUID, len(r.TenantIds))
			for i, id := range r.TenantIds {
				p.TenantIDs[i] = id.Bytes
			}
		}
		processes[i] = p
	}
	return processes, nil
}

func activePauses(ctx context.Context, q *dbsqlc.Queries) ([]Pause, error) {
	rows, err := q.ActivePauses(ctx)
	if err != nil {
		return nil, err
	}
	pauses := make([]Pause, len(rows))
	for i, r := range rows {
		pauses[i] = Pause{Namespace: r.Namespace, Topic: r.Topic, Listener: r.Listener, Since: r.PausedAt.Time, Until: r.Until.Time, Who: r.Who, Why: r.Why}
		if tenant := uuid.UUID(r.TenantID.Bytes); tenant != uuid.Nil {
			pauses[i].TenantID = uuid.NullUUID{UUID: tenant, Valid: true}
		}
	}
	return pauses, nil
}
