package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/postgres/pgname"
)

func (a *app) drainedCommand() *cobra.Command {
	var db database
	var topic string
	var version int
	c := &cobra.Command{
		Use:   "drained --topic namespace/name [--version n]",
		Short: "Say whether events still need a payload version",
		Long: `drained says whether any event of a topic still needs a payload version, or an older one: events that wait, are
scheduled, are retried or are in flight, parked events and dead letters, stale events in an inbox of this
database, and events of a log topic that a listener has not passed. Without --version it asks for every
version: then it says whether a name in renamed_from, or a whole topic, is still needed.

When nothing needs a version, and no process enqueues it any more, its upcaster and its old payload type can
go. Rows of the log that every listener has passed do not count; a new listener that starts at the earliest
event, or a rewind, would read them.

drained exits with 0 if nothing needs the version, and with 1 otherwise.`,
		Example: `  outboxgen drained --topic mini_chat/turn_finalized --version 1
  outboxgen drained --topic mini_chat/turn_ended --json`,
		Args: cobra.NoArgs,
	}
	c.RunE = run(func(ctx context.Context, _ []string) error {
		switch {
		case topic == "":
			return usage(errors.New("--topic is missing: use --topic namespace/name"))
		case c.Flags().Changed("version") && (version < 1 || version > math.MaxInt32):
			return usage(fmt.Errorf("--version: %d is not between 1 and %d", version, math.MaxInt32))
		}
		if namespace, name, _ := strings.Cut(topic, "/"); !pgname.IsName(namespace) || !pgname.IsName(name) {
			return usage(fmt.Errorf("--topic: %q is not a valid topic: use namespace/name", topic))
		}
		schema, err := db.schemaName(a)
		if err != nil {
			return err
		}
		return a.withAdmin(ctx, &db, schema, func(ops *admin.Admin) error {
			d, err := ops.Drained(ctx, topic, version)
			if err != nil {
				return err
			}
			return a.printDrained(topic, d)
		})
	})
	db.flags(c)
	c.Flags().StringVar(&topic, "topic", "", "the topic, as `namespace/name`; it need not be in outbox.yaml")
	c.Flags().IntVar(&version, "version", 0, "the newest payload version that counts; without it all do")
	return c
}

// printDrained prints what still needs the version. It returns errReported if anything does.
func (a *app) printDrained(topic string, d admin.Drained) error {
	what := "topic " + topic
	if d.Version > 0 {
		what = fmt.Sprintf("version %d of topic %s, or an older one", d.Version, topic)
	}
	var err error
	switch {
	case a.json:
		err = a.printJSON(d)
	case d.Is():
		err = a.printf("drained: no event needs %s\n", what)
		if d.Kept > 0 {
			err = a.printf("the log keeps %s of it: a new listener that starts at the earliest event, or a rewind, would "+
				"read them\n", count(int(d.Kept), "event"))
		}
	default:
		_ = a.printf("not drained: events need %s\n", what)
		err = a.printNeeds(topic, d)
	}
	if err == nil && !d.Is() {
		err = errReported
	}
	return err
}

// printNeeds prints which events need the version, and what to do about them.
func (a *app) printNeeds(topic string, d admin.Drained) (err error) {
	type line struct {
		n       int64
		state   string
		whatFor string
	}
	lines := []line{
		{d.Due, "due", "wait for a dispatcher that takes them"},
		{d.Scheduled, "scheduled", "are due later"},
		{d.Retrying, "retrying", "wait for another attempt"},
		{d.InFlight, "in flight", "are handled now, or their process has died"},
		{d.Parked, "parked", "wait at a listener behind a failed event: see outboxgen listener list"},
		{d.Dead, "dead", "replay or discard them: outboxgen dead replay " + topic + ", or dead discard " + topic},
		{d.Quarantined, "quarantined", "are in an inbox: delete them from inbox_quarantined when they are settled"},
	}
	for _, name := range slices.Sorted(maps.Keys(d.Unread)) {
		lines = append(lines, line{
			d.Unread[name], "unread", "listener " + name + " has not passed them: run it, or detach it if it is not needed",
		})
	}
	for _, l := range lines {
		if l.n > 0 {
			err = a.printf("%8d %-11s  %s\n", l.n, l.state, l.whatFor)
		}
	}
	return err
}
