package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/tool/humantime"
	"github.com/outboxgen/outboxgen/outbox"
)

func (a *app) listenerCommand() *cobra.Command {
	var db database
	c := group("listener", "Inspect and control the listeners of log topics",
		`listener inspects and controls the listeners that are attached to a schema: those that have run there and
were not detached. It needs neither their code nor their processes. The processes may keep running, except
during rebase. rewind, rebase and detach show what they would do, and do it with --yes.`,
		a.listenerList(&db), a.listenerPause(&db), a.listenerResume(&db), a.listenerSkip(&db), a.listenerRewind(&db),
		a.listenerRebase(&db), a.listenerDetach(&db))
	db.flags(c)
	return c
}

// administer runs fn with an Admin for the schema.
func (a *app) administer(
	db *database, fn func(ctx context.Context, ops *admin.Admin, args []string) error,
) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		return run(func(ctx context.Context, args []string) error {
			schema, err := db.schemaName(a)
			if err != nil {
				return err
			}
			return a.withAdmin(ctx, db, schema, func(ops *admin.Admin) error { return fn(ctx, ops, args) })
		})(c, args)
	}
}

func (a *app) withAdmin(ctx context.Context, db *database, schema string, fn func(*admin.Admin) error) error {
	pool, err := db.pool(ctx, a)
	if err != nil {
		return err
	}
	defer pool.Close()
	ops, err := admin.New(pool, schema)
	if err != nil {
		return err
	}
	return explained(ctx, pool, ops, schema, fn(ops))
}

// explained returns the error of what a command did with ops, with the database and with what to do.
func explained(ctx context.Context, pool *pgxpool.Pool, ops *admin.Admin, schema string, err error) error {
	switch {
	case err == nil, errors.Is(err, errReported):
		return err
	case errors.As(err, new(*admin.UnknownListenerError)), errors.As(err, new(*admin.UnknownTopicError)),
		errors.As(err, new(*admin.LogTopicError)), errors.As(err, new(*admin.UnknownLimitError)),
		errors.As(err, new(*admin.UnknownProcessError)), errors.As(err, new(*admin.RunningProcessError)),
		errors.Is(err, admin.ErrNotSkippable), errors.Is(err, admin.ErrNotDead):
		return usage(err)
	case errors.Is(err, admin.ErrUnknownEvent):
		return usage(fmt.Errorf(
			"database %s, schema %s: %w: its retention has deleted it, or it is in another database or schema", databaseOf(pool),
			schema, err))
	case errors.As(err, new(*unknownGroup)):
		return usage(fmt.Errorf("database %s, schema %s: %w", databaseOf(pool), schema, err))
	case errors.Is(err, outbox.ErrNotMigrated):
		return fmt.Errorf("database %s, schema %s: %w%s", databaseOf(pool), schema, err, elsewhere(ctx, ops, schema))
	case denied(err):
		return fmt.Errorf("database %s, role %s: %w", databaseOf(pool), pool.Config().ConnConfig.User, err)
	}
	return err
}

// denied reports whether PostgreSQL has refused a statement because the role lacks a privilege.
func denied(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "42501"
}

// databaseOf returns the name of the database of pool.
func databaseOf(pool *pgxpool.Pool) string { return schemadb.DatabaseName(pool.Config().ConnConfig) }

// elsewhere says which other schemas have the tables that schema lacks.
func elsewhere(ctx context.Context, ops *admin.Admin, schema string) string {
	names, err := ops.Schemas(ctx)
	names = slices.DeleteFunc(names, func(name string) bool { return name == schema })
	switch {
	case err != nil || len(names) == 0:
		return ""
	case len(names) == 1:
		return fmt.Sprintf("; schema %s has tables of the outbox: --schema %[1]s", names[0])
	}
	return "; these schemas have tables of the outbox: --schema " + strings.Join(names, " or --schema ")
}

// doneRow says in a --json document whether something was changed.
type doneRow struct {
	Done bool `json:"done"`
}

// resultRow is what a command did to a listener, or would do, in the --json document.
type resultRow struct {
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

// printResult prints row with --json, else the text.
func (a *app) printResult(row resultRow, format string, args ...any) error {
	if a.json {
		return a.printJSON(row)
	}
	return a.printf(format+"\n", args...)
}

// verb returns done, or "would" and undone in a dry run, of which it prints a note.
func (a *app) verb(yes bool, done, undone string) string {
	if yes {
		return done
	}
	a.notef("dry run: nothing was changed; add --yes to apply")
	return "would " + undone
}

func (a *app) listenerPause(db *database) *cobra.Command {
	return a.listenerSwitch(db, "pause", true, "Stop a listener from reading further events",
		`pause lets a listener finish the events that it is handling. It reads no more until it is resumed. Its
events wait and are not pruned. outboxgen pause --listener does the same, and also takes an end.`)
}

func (a *app) listenerResume(db *database) *cobra.Command {
	return a.listenerSwitch(db, "resume", false, "End a pause",
		"resume ends the pause of a listener and wakes the listener.")
}

func (a *app) listenerSwitch(db *database, verb string, paused bool, short, long string) *cobra.Command {
	var person personFlags
	c := &cobra.Command{
		Use:   verb + " LISTENER",
		Short: short,
		Long:  long,
		Args:  cobra.ExactArgs(1),
		RunE: a.administer(db, func(ctx context.Context, ops *admin.Admin, args []string) error {
			scope, act := admin.Scope{Listener: args[0]}, admin.Act{}
			ops = person.as(ops)
			row := resultRow{Listener: args[0], Done: true, Paused: &paused}
			if paused {
				if err := ops.Pause(ctx, scope, act); err != nil {
					return err
				}
				return a.printResult(row, "paused %s", args[0])
			}
			r, err := ops.Resume(ctx, scope, act)
			if err != nil {
				return err
			}
			if row.Done = r.Resumed; !r.Resumed {
				return a.printResult(row, "%s is not paused: nothing to resume", args[0])
			}
			return a.printResult(row, "resumed %s", args[0])
		}),
	}
	person.flags(c)
	return c
}

func (a *app) listenerSkip(db *database) *cobra.Command {
	var person personFlags
	c := &cobra.Command{
		Use:   "skip LISTENER [EVENT-ID]",
		Short: "Move one event to the dead letters, so that the listener continues after it",
		Long: `skip moves one event to the dead letters, and the listener continues with the next one. Without an id it
skips the event that has failed. With an id it skips the event at which a shard stands, as list shows it,
or a parked event. The dead letter contains a copy of the event.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: a.administer(db, func(ctx context.Context, ops *admin.Admin, args []string) error {
			id := uuid.Nil
			if len(args) > 1 {
				var err error
				if id, err = uuid.Parse(args[1]); err != nil || id == uuid.Nil {
					return usage(fmt.Errorf("%q is not a valid event id: use a UUID, as listener list shows it", args[1]))
				}
			}
			e, err := person.as(ops).Skip(ctx, args[0], id)
			if err != nil {
				return err
			}
			topic := e.Namespace + "/" + e.Topic
			row := resultRow{Listener: args[0], Done: true, EventID: e.ID.String(), Topic: topic, Attempts: &e.Attempt}
			return a.printResult(row, "skipped %s %s (%s) after %s", args[0], e.ID, topic, count(e.Attempt, "attempt"))
		}),
	}
	person.flags(c)
	return c
}

func (a *app) listenerRewind(db *database) *cobra.Command {
	var to string
	var yes bool
	var person personFlags
	c := &cobra.Command{
		Use:   "rewind LISTENER --to TIME",
		Short: "Make a listener handle events again, from a time or from the start of the log",
		Long: `rewind moves a listener back to a time. The listener then handles again what was enqueued since, as far as
the log still has it, and perhaps a few earlier events. rewind never moves a listener forward. Handlers get
events a second time, so they must be idempotent. Events in the dead letters are handled again, too.`,
		Example: `  outboxgen listener rewind companion --to 2026-05-01T12:00:00Z
  outboxgen listener rewind companion --to 90m --yes
  outboxgen listener rewind companion --to start --yes`,
		Args: cobra.ExactArgs(1),
	}
	var since time.Time
	c.PreRunE = func(*cobra.Command, []string) (err error) {
		since, err = rewindTo(to, time.Now())
		return err
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, args []string) error {
		if !yes {
			ops = ops.Preview()
		}
		events, err := person.as(ops).Rewind(ctx, args[0], since)
		if err != nil {
			return err
		}
		row := resultRow{Listener: args[0], Done: yes, To: "start", Events: &events}
		if !since.IsZero() {
			row.To = since.UTC().Format(time.RFC3339Nano)
		}
		return a.printResult(row, "%s %s to %s: %s ahead in the log", a.verb(yes, "rewound", "rewind"), args[0], row.To,
			count(int(events), "event"))
	})
	c.Flags().StringVar(&to, "to", "", "`time` like 2026-05-01T12:00:00Z or 2026-05-01 (UTC), an age like 90m, or start")
	c.Flags().BoolVar(&yes, "yes", false, "apply the change")
	person.flags(c)
	return c
}

// rewindTo returns the time that the flag --to means. "start" is the zero time.
func rewindTo(text string, now time.Time) (time.Time, error) {
	switch text {
	case "":
		return time.Time{}, errors.New("--to is missing: use a time, an age or start")
	case "start":
		return time.Time{}, nil
	}
	t, err := humantime.Parse(text, now)
	if err != nil {
		return t, fmt.Errorf("--to: %w, or start", err)
	}
	return t, nil
}

func (a *app) listenerDetach(db *database) *cobra.Command {
	var yes bool
	var person personFlags
	c := &cobra.Command{
		Use:   "detach LISTENER",
		Short: "Remove a listener, so that the log no longer keeps events for it",
		Long: `detach deletes the cursors and the parked events of a listener. Its dead letters stay for their retention.
First remove the listener from outbox.yaml and stop its processes: a process that is running ends with an
error, and a process that starts attaches the listener again, at the start that the YAML gives.`,
		Args: cobra.ExactArgs(1),
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, args []string) error {
		if !yes {
			ops = ops.Preview()
		}
		r, err := person.as(ops).Detach(ctx, args[0])
		if err != nil {
			return err
		}
		return a.printResult(resultRow{Listener: args[0], Done: yes, Shards: r.Shards, Parked: &r.Parked}, "%s %s: %s, %s",
			a.verb(yes, "detached", "detach"), args[0], count(r.Shards, "shard"), count(int(r.Parked), "parked event"))
	})
	c.Flags().BoolVar(&yes, "yes", false, "apply the change")
	person.flags(c)
	return c
}

func (a *app) listenerRebase(db *database) *cobra.Command {
	var yes bool
	var person personFlags
	c := &cobra.Command{
		Use:   "rebase",
		Short: "Repair the cursors of a restored database",
		Long: `rebase repairs a database that was restored from a dump. Listeners refuse to start there, because the
transaction ids in their cursors belong to another database cluster. After rebase every listener continues
exactly where it was when the dump was taken. rebase also moves the sequence of the log forward if a copy
has left it behind. It rewrites the log in one transaction. Stop the listeners first; producers may keep
running. If there is nothing to repair, rebase says so and changes nothing.`,
		Args: cobra.NoArgs,
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		if !yes {
			ops = ops.Preview()
		}
		r, err := person.as(ops).WithProgress(a.progress("rebase")).Rebase(ctx)
		if err != nil {
			return err
		}
		verb := "rebased"
		if !r.Needed {
			a.notef("nothing to rebase: the cursors belong to this database")
		} else {
			verb = a.verb(yes, "rebased", "rebase")
			a.notef("the log holds %s, %d of them behind a cursor", count(int(r.Events), "event"), r.Behind)
		}
		if a.json {
			r.Listeners = append([]string{}, r.Listeners...)
			return a.printJSON(doneRow{r.Needed && yes}, r)
		}
		for _, name := range r.Listeners {
			err = a.printf("%s %s\n", verb, name)
		}
		return err
	})
	c.Flags().BoolVar(&yes, "yes", false, "apply the change")
	person.flags(c)
	return c
}

// progressEvery is the time between two notes of progress.
const progressEvery = 5 * time.Second

// progress returns a function that prints a note of progress every progressEvery.
func (a *app) progress(what string) func(done, total int64) {
	last := time.Now()
	return func(done, total int64) {
		if now := time.Now(); now.Sub(last) >= progressEvery {
			last = now
			a.notef("%s: %d of %d events", what, done, total)
		}
	}
}
