package cli

import (
	"context"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/outbox"
)

func (a *app) pruneCommand() *cobra.Command {
	var db database
	var yes bool
	var person personFlags
	c := &cobra.Command{
		Use:   "prune",
		Short: "Delete events past their retention",
		Long: `prune deletes events that are past the retention that outbox.yaml gives their topic: delivered and dead
events of queue topics, events of log topics that every attached listener has passed, and dead letters of
listeners. It keeps an event that a listener has not passed, however old it is, and names that listener.
It leaves topics alone that are not in the YAML. Dispatchers and listeners prune their own topics while
they run; use prune for other topics, or in a cron job. Without --yes it only shows what it would delete.`,
		Args: cobra.NoArgs,
		RunE: run(func(ctx context.Context, _ []string) error {
			m, err := db.model(a)
			if err != nil {
				return err
			}
			schema := m.Schema
			if db.schema != "" {
				if schema, err = db.schemaName(a); err != nil {
					return err
				}
			}
			return a.withAdmin(ctx, &db, schema, func(admin *admin.Admin) error {
				return a.prune(ctx, person.as(admin), m, yes)
			})
		}),
	}
	db.flags(c)
	c.Flags().BoolVar(&yes, "yes", false, "apply the change")
	person.flags(c)
	return c
}

func (a *app) prune(ctx context.Context, admin *admin.Admin, m *model.Model, yes bool) error {
	if !yes {
		admin = admin.Preview()
	}
	topics := make(map[string]outbox.Retention)
	for _, n := range m.Namespaces {
		for _, t := range n.Topics {
			topics[t.FullName()] = outbox.Retention{Delivered: t.Retention.Delivered, Dead: t.Retention.Dead}
		}
	}
	r, err := admin.Prune(ctx, topics)
	if err != nil {
		return err
	}
	verb := a.verb(yes, "deleted", "delete")
	if a.json {
		return a.printJSON(doneRow{yes}, r)
	}
	err = a.printf("%s %s of log topics\n%s %s of listeners\n%s %s of queue topics\n",
		verb, count(int(r.Log), "event"), verb, count(int(r.DeadLetters), "dead letter"), verb, count(int(r.Queue), "event"))
	for _, name := range slices.Sorted(maps.Keys(r.BlockedBy)) {
		err = a.printf("kept %s past retention for %s\n", count(int(r.BlockedBy[name]), "event"), name)
	}
	return err
}
