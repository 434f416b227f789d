package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/outbox"
)

// shardRow is one shard of a listener in the --json document.
type shardRow struct {
	Listener      string     `json:"listener"`
	Shard         int        `json:"shard"`
	Shards        int        `json:"shards"`
	ReshardTo     int        `json:"reshard_to,omitempty"`
	State         string     `json:"state"`
	Paused        bool       `json:"paused"`
	Alarm         bool       `json:"alarm"`
	Holder        string     `json:"holder,omitempty"`
	LeaseUntil    *time.Time `json:"lease_until,omitempty"`
	Position      int64      `json:"position"`
	LagEvents     int64      `json:"lag_events"`
	LagSeconds    float64    `json:"lag_seconds"`
	MaxLagSeconds float64    `json:"max_lag_seconds,omitempty"`
	Attempts      int        `json:"attempts"`
	EventID       string     `json:"event_id,omitempty"`
	RetryAfter    *time.Time `json:"retry_after,omitempty"`
	LastError     string     `json:"last_error,omitempty"`
	ParkedKeys    int64      `json:"parked_keys"`
	ParkedEvents  int64      `json:"parked_events"`
	DeadLetters   int64      `json:"dead_letters"`
	AttachedAt    time.Time  `json:"attached_at"`
	AdvancedAt    *time.Time `json:"advanced_at,omitempty"`

	UnhandledVersions []topicVersionRow `json:"unhandled_versions,omitzero"`
}

func newShardRow(s admin.ListenerStatus) shardRow {
	row := shardRow{
		Listener: s.Listener, Shard: s.Shard, Shards: s.Shards, ReshardTo: s.ReshardTo,
		State: string(s.State), Paused: s.Paused, Alarm: alarming(s),
		LeaseUntil: jsonTime(s.LeaseUntil), Position: s.Position, LagEvents: s.Unread,
		LagSeconds: s.Lag.Seconds(), MaxLagSeconds: s.MaxLag.Seconds(), Attempts: s.Attempts,
		RetryAfter: jsonTime(s.RetryAfter), LastError: s.LastError, ParkedKeys: s.ParkedKeys, ParkedEvents: s.ParkedEvents,
		DeadLetters: s.DeadLetters, AttachedAt: s.AttachedAt.UTC(), AdvancedAt: jsonTime(s.AdvancedAt),
		UnhandledVersions: topicVersionRows(s.UnhandledVersions),
	}
	if s.Holder.Valid {
		row.Holder = s.Holder.UUID.String()
	}
	if s.Head.Valid {
		row.EventID = s.Head.UUID.String()
	}
	return row
}

// alarming reports whether s needs attention, independent of its state.
func alarming(s admin.ListenerStatus) bool {
	return s.State == admin.ListenerRestored || s.MaxLag > 0 && s.Lag > s.MaxLag
}

func jsonTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func (a *app) listenerList(db *database) *cobra.Command {
	var check bool
	var dead int64
	c := &cobra.Command{
		Use:   "list",
		Short: "List the listeners with their position, their lag and what blocks them",
		Long: `list prints the shards of all attached listeners.

STATE    restored, paused, blocked (its event has failed and waits for the next attempt), lagging (more
         than max_lag), resharding, running, waiting (there are events to read, but no process reads), idle
UNREAD   events after its position: an estimate, counting all topics
AGE      age of the oldest event that it has not handled
HOLDER   the worker that holds its lease; nobody holds an idle shard
PARKED   events that wait behind a failed event of their key
DEAD     its dead letters
EVENT    the event at which it stands, if that event has failed, with its attempts and the latest error

With --check the command exits with 1 if a listener lags more than its max_lag, needs a rebase, or has more
dead letters than --dead allows.`,
		Args: cobra.NoArgs,
	}
	c.PreRunE = func(*cobra.Command, []string) error {
		if dead < 0 {
			return fmt.Errorf("--dead: %d must not be negative: it is how many dead letters a listener may have", dead)
		}
		return nil
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		shards, err := ops.Listeners(ctx)
		if err != nil {
			return err
		}
		letters := make(map[string]int64)
		for _, s := range shards {
			letters[s.Listener] += s.DeadLetters
		}
		rows, alarm := make([]shardRow, len(shards)), false
		for i, s := range shards {
			rows[i] = newShardRow(s)
			rows[i].Alarm = rows[i].Alarm || check && letters[s.Listener] > dead
			alarm = alarm || rows[i].Alarm
		}
		switch {
		case a.json:
			err = a.printJSON(struct {
				Shards []shardRow `json:"shards"`
			}{rows})
		case len(rows) == 0:
			a.notef("no listener is attached")
		default:
			err = a.printTable(shardTable(shards))
		}
		if err != nil || !check || !alarm {
			return err
		}
		for _, s := range shards {
			if s.Shard == 0 && letters[s.Listener] > dead {
				a.notef("listener %s has %s, more than %d: see outboxgen dead list --listener %s", s.Listener, count(int(letters[s.Listener]), "dead letter"), dead, s.Listener)
			}
			switch {
			case !alarming(s):
			case s.State == admin.ListenerRestored:
				a.notef("listener %s shard %d: %v", s.Listener, s.Shard, outbox.ErrRestored)
			default:
				a.notef("listener %s shard %d lags %s, more than max_lag %s", s.Listener, s.Shard, ageText(s.Lag), span(s.MaxLag))
			}
		}
		return errReported
	})
	c.Flags().BoolVar(&check, "check", false, "exit with 1 if a listener needs attention")
	c.Flags().Int64Var(&dead, "dead", 0, "with --check, how many dead letters a listener may have")
	return c
}

func shardTable(shards []admin.ListenerStatus) [][]any {
	table := [][]any{{"LISTENER", "SHARD", "STATE", "UNREAD", "AGE", "HOLDER", "PARKED", "DEAD", "EVENT", "ATTEMPTS", "LAST ERROR"}}
	for _, s := range shards {
		r := newShardRow(s)
		table = append(table, []any{r.Listener, fmt.Sprintf("%d/%d", r.Shard, r.Shards), r.State, r.LagEvents, ageText(s.Lag),
			dash(r.Holder), r.ParkedEvents, r.DeadLetters, dash(r.EventID), r.Attempts, dash(errtext.Short(r.LastError))})
	}
	return table
}

// ageText formats an age in its two largest units.
func ageText(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
}

// briefLength is how much a table shows of a text that people or machines have written, such as a host or a scope.
const briefLength = 60

// brief returns the beginning of a text on one line, without characters that control a terminal.
func brief(text string) string {
	text = errtext.Line(text)
	if runes := []rune(text); len(runes) > briefLength {
		return string(runes[:briefLength-3]) + "..."
	}
	return text
}
