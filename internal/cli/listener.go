package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/outbox"
)

func (a *app) listenerCommand() *cobra.Command {
	var db database
	c := group("listener", "See and steer the listeners of log topics",
		`listener looks after the listeners that are attached to a schema: those that have run and were not
detached. It needs neither their code nor their processes, which may go on running meanwhile, but for
rebase. What rewind, rebase and detach would do is shown; they do it with --yes.`,
		a.listenerList(&db), a.listenerPause(&db), a.listenerResume(&db), a.listenerSkip(&db), a.listenerRewind(&db),
		a.listenerRebase(&db), a.listenerDetach(&db))
	db.flags(c)
	return c
}

// administer runs fn with an administration of the schema's listeners.
func (a *app) administer(
	db *database, fn func(ctx context.Context, admin *outbox.ListenerAdmin, args []string) error,
) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		return run(func(ctx context.Context, args []string) error {
			schema, err := db.schemaName(a, c.Flags().Changed("config"))
			if err != nil {
				return err
			}
			return a.withAdmin(ctx, db, schema, func(admin *outbox.ListenerAdmin) error { return fn(ctx, admin, args) })
		})(c, args)
	}
}

func (a *app) withAdmin(ctx context.Context, db *database, schema string, fn func(*outbox.ListenerAdmin) error) error {
	pool, err := db.pool(ctx, a)
	if err != nil {
		return err
	}
	defer pool.Close()
	admin, err := outbox.NewListenerAdmin(pool, schema)
	if err != nil {
		return err
	}
	err = fn(admin)
	switch {
	case err == nil, errors.Is(err, errReported):
		return err
	case errors.As(err, new(*outbox.UnknownListenerError)), errors.Is(err, outbox.ErrNotSkippable):
		return usage(err)
	case errors.Is(err, outbox.ErrNotMigrated):
		return fmt.Errorf("schema %s: %w", schema, err)
	}
	return err
}

// deedRow is what was done to a listener, or would be, as --json shows it.
type deedRow struct {
	Listener string `json:"listener"`
	Done     bool   `json:"done"`
	Paused   *bool  `json:"paused,omitempty"`
	EventID  string `json:"event_id,omitempty"`
	Topic    string `json:"topic,omitempty"`
	Attempts *int   `json:"attempts,omitempty"`
	To       string `json:"to,omitempty"`
	Events   *int64 `json:"events,omitempty"`
	Shards   int    `json:"shards,omitempty"`
	Parked   *int64 `json:"parked,omitempty"`
}

// deed prints row, or the text of it.
func (a *app) deed(row deedRow, format string, args ...any) error {
	if a.json {
		return a.printJSON(row)
	}
	return a.printf(format+"\n", args...)
}

// verb returns how a deed is told; when it was only looked at, a note says how it is done.
func (a *app) verb(yes bool, done, undone string) string {
	if yes {
		return done
	}
	a.notef("nothing was done: --yes does it")
	return "would " + undone
}

func (a *app) listenerPause(db *database) *cobra.Command {
	return a.listenerSwitch(db, "pause", true, "Keep a listener from taking further events", `pause lets a listener finish what it is handling, and take nothing more until it is resumed. Its events
wait, and are not pruned.`)
}

func (a *app) listenerResume(db *database) *cobra.Command {
	return a.listenerSwitch(db, "resume", false, "End a pause", "resume lets a paused listener go on, and wakes it.")
}

func (a *app) listenerSwitch(db *database, verb string, paused bool, short, long string) *cobra.Command {
	return &cobra.Command{
		Use:   verb + " LISTENER",
		Short: short,
		Long:  long,
		Args:  cobra.ExactArgs(1),
		RunE: a.administer(db, func(ctx context.Context, admin *outbox.ListenerAdmin, args []string) error {
			do := admin.Resume
			if paused {
				do = admin.Pause
			}
			if err := do(ctx, args[0]); err != nil {
				return err
			}
			return a.deed(deedRow{Listener: args[0], Done: true, Paused: &paused}, "%sd %s", verb, args[0])
		}),
	}
}

func (a *app) listenerSkip(db *database) *cobra.Command {
	return &cobra.Command{
		Use:   "skip LISTENER [EVENT-ID]",
		Short: "Have a listener go past one event, which becomes a dead letter",
		Long: `skip makes a dead letter of one event and lets the listener go on behind it. Without an id it is the
event that has failed; with one it is the event at which a shard stands, as list shows it, or one that was
set aside. The dead letter holds a copy of the event.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: a.administer(db, func(ctx context.Context, admin *outbox.ListenerAdmin, args []string) error {
			id := uuid.Nil
			if len(args) > 1 {
				var err error
				if id, err = uuid.Parse(args[1]); err != nil || id == uuid.Nil {
					return usage(fmt.Errorf("event %q: is not the id of an event, a UUID", args[1]))
				}
			}
			e, err := admin.Skip(ctx, args[0], id)
			if err != nil {
				return err
			}
			topic := e.Namespace + "/" + e.Topic
			row := deedRow{Listener: args[0], Done: true, EventID: e.ID.String(), Topic: topic, Attempts: &e.Attempt}
			return a.deed(row, "skipped %s %s (%s) after %s", args[0], e.ID, topic, count(e.Attempt, "attempt"))
		}),
	}
}

func (a *app) listenerRewind(db *database) *cobra.Command {
	var to string
	var yes bool
	c := &cobra.Command{
		Use:   "rewind LISTENER --to TIME",
		Short: "Have a listener handle events again, from a time or from the start of the log",
		Long: `rewind sends a listener back to a time: it handles again what was enqueued since, as far as the log still
holds it, and perhaps a few events from before. It never goes forward past an event. Handlers see events
twice, unless they know them; events in the dead letters come again, too.`,
		Example: `  outboxgen listener rewind companion --to 2026-05-01T12:00:00Z
  outboxgen listener rewind companion --to 90m --yes
  outboxgen listener rewind companion --to start --yes`,
		Args: cobra.ExactArgs(1),
	}
	var since time.Time
	c.PreRunE = func(*cobra.Command, []string) (err error) {
		since, err = parseMoment(to, time.Now())
		return err
	}
	c.RunE = a.administer(db, func(ctx context.Context, admin *outbox.ListenerAdmin, args []string) error {
		if !yes {
			admin = admin.Preview()
		}
		events, err := admin.Rewind(ctx, args[0], since)
		if err != nil {
			return err
		}
		row := deedRow{Listener: args[0], Done: yes, To: "start", Events: &events}
		if !since.IsZero() {
			row.To = since.UTC().Format(time.RFC3339Nano)
		}
		return a.deed(row, "%s %s to %s: %s of the log ahead", a.verb(yes, "rewound", "rewind"), args[0], row.To, count(int(events), "event"))
	})
	c.Flags().StringVar(&to, "to", "", "`time` as 2026-05-01T12:00:00Z, 2026-05-01 (UTC), or an age like 90m; or start")
	c.Flags().BoolVar(&yes, "yes", false, "do it")
	return c
}

// parseMoment returns the time that text says: a time, a day, or an age before now. The start is the zero time.
func parseMoment(text string, now time.Time) (time.Time, error) {
	switch text {
	case "":
		return time.Time{}, errors.New("--to is missing: a time, an age, or start")
	case "start":
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(text); err == nil && age >= 0 {
		return now.Add(-age), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", time.DateTime, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil && t.Year() > 0 {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("--to: %q is no time like 2026-05-01T12:00:00Z or 2026-05-01, no age like 90m, and not start", text)
}

func (a *app) listenerDetach(db *database) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use:   "detach LISTENER",
		Short: "Forget a listener, so that the log no longer waits for it",
		Long: `detach deletes the cursors of a listener and what it has set aside. Its dead letters stay for their
retention. Remove it from outbox.yaml and stop its processes first: one that is running ends with an
error, and one that starts attaches it anew, at the start that the YAML says.`,
		Args: cobra.ExactArgs(1),
	}
	c.RunE = a.administer(db, func(ctx context.Context, admin *outbox.ListenerAdmin, args []string) error {
		if !yes {
			admin = admin.Preview()
		}
		r, err := admin.Detach(ctx, args[0])
		if err != nil {
			return err
		}
		return a.deed(deedRow{Listener: args[0], Done: yes, Shards: r.Shards, Parked: &r.Parked}, "%s %s: %s, %s set aside",
			a.verb(yes, "detached", "detach"), args[0], count(r.Shards, "shard"), count(int(r.Parked), "event"))
	})
	c.Flags().BoolVar(&yes, "yes", false, "do it")
	return c
}

// rebaseRow is a rebase as --json shows it.
type rebaseRow struct {
	Needed    bool     `json:"needed"`
	Done      bool     `json:"done"`
	Listeners []string `json:"listeners"`
	Events    int64    `json:"events"`
	Behind    int64    `json:"behind"`
}

func (a *app) listenerRebase(db *database) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use:   "rebase",
		Short: "Put the cursors of a restored database right",
		Long: `rebase is for a database that came out of a dump, in which listeners refuse to start: its transaction ids
mean nothing there. Afterwards every listener goes on exactly where it was when the dump was taken. It
also brings the sequence of the log forward where a copy has left it behind. It
rewrites the log, in one transaction, so that it all happens or nothing does. Stop the listeners
first; producers may go on. Where there is nothing to do it says so and does nothing.`,
		Args: cobra.NoArgs,
	}
	c.RunE = a.administer(db, func(ctx context.Context, admin *outbox.ListenerAdmin, _ []string) error {
		if !yes {
			admin = admin.Preview()
		}
		r, err := admin.WithProgress(a.progress("rebase")).Rebase(ctx)
		if err != nil {
			return err
		}
		row := rebaseRow{Needed: r.Needed, Done: r.Needed && yes, Listeners: r.Listeners, Events: r.Events, Behind: r.Behind}
		if row.Listeners == nil {
			row.Listeners = []string{}
		}
		verb := "rebased"
		if !r.Needed {
			a.notef("nothing to rebase: the cursors are those of this database")
		} else {
			verb = a.verb(yes, "rebased", "rebase")
			a.notef("the log holds %s, %d of them behind a cursor", count(int(r.Events), "event"), r.Behind)
		}
		if a.json {
			return a.printJSON(row)
		}
		for _, name := range r.Listeners {
			if err := a.printf("%s %s\n", verb, name); err != nil {
				return err
			}
		}
		return nil
	})
	c.Flags().BoolVar(&yes, "yes", false, "do it")
	return c
}

// progressEvery is how often a note tells how far something is.
const progressEvery = 5 * time.Second

// progress returns a function that notes now and then how far something is.
func (a *app) progress(what string) func(done, total int64) {
	last := time.Now()
	return func(done, total int64) {
		if now := time.Now(); now.Sub(last) >= progressEvery {
			last = now
			a.notef("%s: %d of %d events", what, done, total)
		}
	}
}
