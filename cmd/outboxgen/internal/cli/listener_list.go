package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/outbox"
)

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
		alarm, rows := false, slices.Clone(shards)
		for i, s := range shards {
			rows[i].Alarm = s.Alarm || check && letters[s.Listener] > dead
			alarm = alarm || rows[i].Alarm
		}
		err = a.printList(struct {
			Shards []admin.ListenerStatus `json:"shards"`
		}{rows}, shardTable(shards), "no listener is attached")
		if err != nil || !check || !alarm {
			return err
		}
		for _, s := range shards {
			if s.Shard == 0 && letters[s.Listener] > dead {
				a.notef("listener %s has %s, more than %d: see outboxgen dead list --listener %s", s.Listener,
					count(int(letters[s.Listener]), "dead letter"), dead, s.Listener)
			}
			switch {
			case !s.Alarm:
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
	table := [][]any{
		{"LISTENER", "SHARD", "STATE", "UNREAD", "AGE", "HOLDER", "PARKED", "DEAD", "EVENT", "ATTEMPTS", "LAST ERROR"},
	}
	for _, s := range shards {
		table = append(table, []any{
			s.Listener, fmt.Sprintf("%d/%d", s.Shard, s.Shards), s.State, s.Unread, ageText(s.Lag), uuidText(s.Holder),
			s.ParkedEvents, s.DeadLetters, uuidText(s.Head), s.Attempts, dash(errtext.Short(s.LastError)),
		})
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
