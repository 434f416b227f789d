package cli

import (
	"time"

	"github.com/outboxgen/outboxgen/admin"
)

// countRow is an admin.Count in a --json document.
type countRow struct {
	Count int64 `json:"count"`
	More  bool  `json:"more,omitempty"`
}

func newCountRow(c admin.Count) countRow { return countRow{c.N, c.More} }

type processRow struct {
	WorkerID  string            `json:"worker_id"`
	Kind      string            `json:"kind"`
	Name      string            `json:"name"`
	Host      string            `json:"host"`
	PID       int               `json:"pid"`
	TenantIDs []string          `json:"tenant_ids,omitzero"`
	Resting   map[string]string `json:"resting,omitempty"`
	StartedAt time.Time         `json:"started_at"`
	SeenAt    time.Time         `json:"seen_at"`
}

type pauseRow struct {
	Namespace string     `json:"namespace,omitempty"`
	Topic     string     `json:"topic,omitempty"`
	TenantID  string     `json:"tenant_id,omitempty"`
	Listener  string     `json:"listener,omitempty"`
	Since     time.Time  `json:"since"`
	Until     *time.Time `json:"until,omitempty"`
	Who       string     `json:"who"`
	Why       string     `json:"why,omitempty"`
}

type topicStatusRow struct {
	Topic              string       `json:"topic"`
	Due                countRow     `json:"due"`
	Retrying           countRow     `json:"retrying"`
	Scheduled          countRow     `json:"scheduled"`
	InFlight           countRow     `json:"in_flight"`
	Expired            countRow     `json:"expired"`
	Dead               countRow     `json:"dead"`
	DeadLastHour       countRow     `json:"dead_last_hour"`
	OldestSeconds      float64      `json:"oldest_seconds"`
	MaxLagSeconds      float64      `json:"max_lag_seconds,omitempty"`
	DeliveredPerSecond float64      `json:"delivered_per_second"`
	EnqueuedPerSecond  float64      `json:"enqueued_per_second"`
	Unhandled          bool         `json:"unhandled"`
	UnhandledVersions  []int        `json:"unhandled_versions,omitzero"`
	Processes          []processRow `json:"processes"`
	Pauses             []pauseRow   `json:"pauses"`
}

type listenerStatusRow struct {
	Listener      string       `json:"listener"`
	Shards        int          `json:"shards"`
	State         string       `json:"state"`
	Unread        int64        `json:"unread"`
	Parked        int64        `json:"parked"`
	Dead          int64        `json:"dead"`
	OldestSeconds float64      `json:"oldest_seconds"`
	MaxLagSeconds float64      `json:"max_lag_seconds,omitempty"`
	Processes     []processRow `json:"processes"`
	Pauses        []pauseRow   `json:"pauses"`

	UnhandledVersions []topicVersionRow `json:"unhandled_versions,omitzero"`
}

type topicVersionRow struct {
	Topic   string `json:"topic"`
	Version int    `json:"version"`
}

func topicVersionRows(versions []admin.TopicVersion) (rows []topicVersionRow) {
	for _, v := range versions {
		rows = append(rows, topicVersionRow{v.Topic, v.Version})
	}
	return rows
}

type consumerStatusRow struct {
	Consumer       string     `json:"consumer"`
	Parked         countRow   `json:"parked"`
	Dead           countRow   `json:"dead"`
	OldestSeconds  float64    `json:"oldest_seconds"`
	OverdueSeconds float64    `json:"overdue_seconds"`
	Error          string     `json:"error,omitempty"`
	LastDiedAt     *time.Time `json:"last_died_at,omitempty"`
	DeadError      string     `json:"dead_error,omitempty"`
}

// statusDocument is the --json document.
type statusDocument struct {
	Topics    []topicStatusRow    `json:"topics"`
	Listeners []listenerStatusRow `json:"listeners"`
	Consumers []consumerStatusRow `json:"consumers"`
	Problems  []string            `json:"problems"`
	Broken    []string            `json:"broken"`
}

func (s *status) document() statusDocument {
	d := statusDocument{Topics: []topicStatusRow{}, Listeners: []listenerStatusRow{}, Consumers: []consumerStatusRow{}, Problems: append([]string{}, s.problems...), Broken: append([]string{}, s.broken...)}
	for _, t := range s.topics {
		d.Topics = append(d.Topics, topicStatusRow{
			Topic: t.Name(), Due: newCountRow(t.Due), Retrying: newCountRow(t.Retrying), Scheduled: newCountRow(t.Scheduled), InFlight: newCountRow(t.InFlight),
			Expired: newCountRow(t.Expired), Dead: newCountRow(t.Dead), DeadLastHour: newCountRow(t.DeadLastHour), OldestSeconds: t.Oldest.Seconds(),
			MaxLagSeconds: t.MaxLag.Seconds(), DeliveredPerSecond: t.DeliveredPerSecond, EnqueuedPerSecond: t.EnqueuedPerSecond, Unhandled: t.Unhandled, UnhandledVersions: t.UnhandledVersions,
			Processes: processRows(t.Processes), Pauses: pauseRows(t.Pauses),
		})
	}
	for _, l := range s.listeners {
		d.Listeners = append(d.Listeners, listenerStatusRow{
			Listener: l.Listener, Shards: l.Shards, State: string(l.State), Unread: l.Unread, Parked: l.ParkedEvents, Dead: l.DeadLetters,
			OldestSeconds: l.Lag.Seconds(), MaxLagSeconds: l.MaxLag.Seconds(), Processes: processRows(l.Processes), Pauses: pauseRows(l.Pauses),
			UnhandledVersions: topicVersionRows(l.UnhandledVersions),
		})
	}
	for _, c := range s.consumers {
		d.Consumers = append(d.Consumers, consumerStatusRow{
			Consumer: c.Consumer, Parked: newCountRow(c.Parked), Dead: newCountRow(c.Dead), OldestSeconds: c.Oldest.Seconds(),
			OverdueSeconds: c.Overdue.Seconds(), Error: c.Error, LastDiedAt: jsonTime(c.LastDiedAt), DeadError: c.DeadError,
		})
	}
	return d
}

func processRows(processes []admin.Process) []processRow {
	rows := make([]processRow, len(processes))
	for i, p := range processes {
		rows[i] = processRow{WorkerID: p.WorkerID.String(), Kind: string(p.Kind), Name: p.Name, Host: p.Host, PID: p.PID, Resting: p.Resting, StartedAt: p.StartedAt.UTC(), SeenAt: p.SeenAt.UTC()}
		for _, id := range p.TenantIDs {
			rows[i].TenantIDs = append(rows[i].TenantIDs, id.String())
		}
	}
	return rows
}

func pauseRows(pauses []admin.Pause) []pauseRow {
	rows := make([]pauseRow, len(pauses))
	for i, p := range pauses {
		rows[i] = pauseRow{Namespace: p.Namespace, Topic: p.Topic, Listener: p.Listener, Since: p.Since.UTC(), Until: jsonTime(p.Until), Who: p.Who, Why: p.Why}
		if p.TenantID.Valid {
			rows[i].TenantID = p.TenantID.UUID.String()
		}
	}
	return rows
}
