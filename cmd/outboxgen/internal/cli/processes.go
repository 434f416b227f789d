package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
)

// keptProcesses is after what time the row of a process that is gone is deleted anyway.
const keptProcesses = 30 * 24 * time.Hour

// goneAfterFlag adds --gone-after to c. The function that it returns checks its value.
func goneAfterFlag(c *cobra.Command, goneAfter *time.Duration) func() error {
	c.Flags().DurationVar(goneAfter, "gone-after", admin.DefaultGoneAfter,
		"leave out processes that were last seen longer ago than this `duration`, up to 720h")
	return func() error {
		if *goneAfter <= 0 || *goneAfter > keptProcesses {
			return fmt.Errorf("--gone-after: %v is not a duration up to 720h, like 24h", *goneAfter)
		}
		return nil
	}
}

func (a *app) processesCommand() *cobra.Command {
	var db database
	list := a.processesList(&db)
	c := group("processes", "List the dispatchers and listeners that run, and forget those that are gone",
		`processes lists the running dispatchers and listeners. A process that was killed stays in the list for a day, or
for an hour if another one of its namespace or listener runs. forget removes it at once.`,
		list, a.processesForget(&db))
	c.PreRunE, c.RunE = list.PreRunE, list.RunE
	c.Flags().AddFlagSet(list.Flags())
	db.flags(c)
	return c
}

func (a *app) processesList(db *database) *cobra.Command {
	var goneAfter time.Duration
	c := &cobra.Command{
		Use:   "list",
		Short: "List the dispatchers and listeners that run",
		Long: `list prints the dispatchers and listeners that run, a row for each call of Run. processes without a command does
the same.

NAME     the namespace of a dispatcher, or the listener
STATE    running, or gone: it was not seen for 90 seconds, so it was killed, or it has no connection to the database
SEEN     how long ago the process has renewed its row; it does so every half minute
ID       what forget takes`,
		Args: cobra.NoArgs,
	}
	check := goneAfterFlag(c, &goneAfter)
	c.PreRunE = func(*cobra.Command, []string) error { return check() }
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		all, err := ops.WithGoneAfter(goneAfter).Processes(ctx)
		if err != nil {
			return err
		}
		table := [][]any{{"KIND", "NAME", "HOST", "PID", "STATE", "STARTED", "SEEN", "ID"}}
		for _, p := range all {
			state := "running"
			if !p.Alive {
				state = "gone"
			}
			table = append(table, []any{
				p.Kind, p.Name, brief(p.Host), p.PID, state, second(p.StartedAt), second(p.SeenAt), p.WorkerID,
			})
		}
		return a.printList(struct {
			Processes []admin.Process `json:"processes"`
		}{append([]admin.Process{}, all...)}, table, "no process runs")
	})
	return c
}

func (a *app) processesForget(db *database) *cobra.Command {
	var person personFlags
	c := &cobra.Command{
		Use:   "forget ID",
		Short: "Remove a process that is gone from the list",
		Long: `forget removes a process that was killed from processes, the dashboard and doctor, which would otherwise show it
until its time is over. It deletes what the process has said about itself, and nothing else: no event and no lease
depends on it. forget refuses a process that was seen within the last minute. A process that still runs, but could not
reach the database, comes back with its next beat, within half a minute.`,
		Example: `  outboxgen processes
  outboxgen processes forget 0190a5c2-7b1e-7c00-8000-0123456789ab`,
		Args: cobra.ExactArgs(1),
	}
	var id uuid.UUID
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if id, err = uuid.Parse(args[0]); err != nil || id == uuid.Nil {
			return fmt.Errorf("%q is not a valid worker id: use a UUID, as outboxgen processes shows it", args[0])
		}
		return nil
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		forgotten, err := person.as(ops).ForgetProcess(ctx, id)
		if err != nil {
			return err
		}
		if a.json {
			rows := make([]processRow, len(forgotten))
			for i, p := range forgotten {
				rows[i] = processRow{p.WorkerID, p.Kind, p.Name, p.Host, p.PID}
			}
			return a.printJSON(doneRow{true}, struct {
				Forgotten []processRow `json:"forgotten"`
			}{rows})
		}
		for _, p := range forgotten {
			err = a.printf("forgot %s %s (%s)\n", p.Kind, p.Name, hostOf(p))
		}
		return err
	})
	person.flags(c)
	return c
}

// processRow is a process that was forgotten, in the --json document.
type processRow struct {
	WorkerID uuid.UUID         `json:"worker_id"`
	Kind     admin.ProcessKind `json:"kind"`
	Name     string            `json:"name"`
	Host     string            `json:"host"`
	PID      int               `json:"pid"`
}
