package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
)

// forgetFlags are the flags of forget.
type forgetFlags struct {
	tenant, entity                    string
	anyTenant, undelivered, processed bool
	yes                               bool
	person                            personFlags
}

func (a *app) forgetCommand() *cobra.Command {
	var db database
	var f forgetFlags
	c := &cobra.Command{
		Use:   "forget",
		Short: "Delete what the outbox keeps about a tenant or an entity",
		Long: `forget finds and deletes what the tables of a schema keep about a tenant or an entity: events with their state and
their failures, dead letters, what listeners and consumers have parked, the versions of entities that consumers know, the
pauses of a tenant, and what the audit says of it. Without --yes it only shows what there is, and changes nothing.

If something is not delivered yet, forget lists it and does nothing, unless --undelivered says that it is to be deleted
too. An event that is being handled counts as undelivered. forget also refuses while a replay runs that may have the same
events. Stop the enqueues first: what is enqueued meanwhile may be missed. The dedupe keys of deleted events are free
again: an enqueue with the same key makes a new event.

It works in pieces. After Ctrl-C, or a crash, run it again: it goes on, and outboxgen doctor reports it until it has
ended. Dispatchers, listeners and consumers may run. For a tenant it reads the tables of events as a whole, 5,000 rows at
a time, because they have no index by tenant. For an entity it uses an index.

The audit gets one entry, which names the tenant or the entity only until the forget has ended.`,
		Example: `  outboxgen forget --tenant 6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab
  outboxgen forget --tenant 6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab --undelivered --reason 'ticket 812' --yes
  outboxgen forget --entity order/4711 --yes
  outboxgen forget --entity order/4711 --tenant 6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab --yes`,
		Args: cobra.NoArgs,
	}
	db.flags(c)
	c.Flags().StringVar(&f.tenant, "tenant", "", "forget the tenant with this `ID`; with --entity, only that entity of it")
	c.Flags().StringVar(&f.entity, "entity", "", "forget this entity: its `type/id`, like order/4711")
	c.Flags().BoolVar(&f.anyTenant, "any-tenant", false, "with --entity, if several tenants have one: forget that of each")
	c.Flags().BoolVar(&f.undelivered, "undelivered", false, "delete also what is not delivered yet")
	c.Flags().BoolVar(&f.processed, "processed", false,
		"delete also which of the events consumers have handled: a broker's copy of one is then handled again")
	c.Flags().BoolVar(&f.yes, "yes", false, "apply the change")
	f.person.flags(c)
	var scope admin.ForgetScope
	c.PreRunE = func(*cobra.Command, []string) (err error) {
		scope, err = f.scope()
		return err
	}
	c.RunE = run(func(ctx context.Context, _ []string) error {
		m, schema, err := db.modelAndSchema(a)
		if err != nil {
			return err
		}
		declared := false // by the YAML
		if m != nil {
			for _, n := range m.Namespaces {
				for _, t := range n.Topics {
					declared = declared || t.Entity != nil && t.Entity.Type == scope.EntityType
				}
			}
		}
		return a.withAdmin(ctx, &db, schema, func(ops *admin.Admin) error {
			return a.forget(ctx, ops, scope, admin.Act{
				Who: cmp.Or(f.person.who, defaultWho()), Why: f.person.why, DryRun: !f.yes,
			}, declared)
		})
	})
	return c
}

// scope returns what the flags name.
func (f *forgetFlags) scope() (s admin.ForgetScope, err error) {
	s = admin.ForgetScope{AnyTenant: f.anyTenant, Undelivered: f.undelivered, Processed: f.processed}
	if f.tenant != "" {
		id, err := uuid.Parse(f.tenant)
		if err != nil || id == uuid.Nil {
			return s, fmt.Errorf("--tenant: %q is not a valid tenant: use its UUID", f.tenant)
		}
		s.TenantID = uuid.NullUUID{UUID: id, Valid: true}
	}
	if f.entity != "" {
		s.EntityType, s.EntityID, _ = strings.Cut(f.entity, "/")
		if s.EntityType == "" || s.EntityID == "" {
			return s, fmt.Errorf("--entity: %q is not an entity: use its type and its id, like order/4711", f.entity)
		}
	}
	switch {
	case f.tenant == "" && f.entity == "":
		return s, errors.New("nothing is named: give --tenant or --entity")
	case f.anyTenant && (f.entity == "" || f.tenant != ""):
		return s, errors.New("--any-tenant belongs to --entity, and excludes --tenant")
	}
	return s, nil
}

func (a *app) forget(ctx context.Context, ops *admin.Admin, scope admin.ForgetScope, act admin.Act, declared bool) error {
	last := time.Now()
	r, err := ops.WithProgress(func(done, total int64) {
		if now := time.Now(); now.Sub(last) >= progressEvery {
			last = now
			a.notef("forget: read %s of about %s rows", commas(done), commas(total))
		}
	}).Forget(ctx, scope, act)
	var unknown *admin.UnknownEntityError
	var argument *admin.ArgumentError
	switch {
	case errors.As(err, &unknown) && declared:
		err = nil // of a type that the YAML has, nothing is kept
	case errors.As(err, &unknown), errors.As(err, &argument):
		return usage(err)
	case errors.Is(err, context.Canceled):
		err = errors.New("forget: interrupted: run the command again to go on")
	case errors.As(err, new(*admin.UndeliveredError)), errors.As(err, new(*admin.ReplayRunsError)),
		errors.As(err, new(*admin.SeveralTenantsError)):
		err = usage(err)
	case err != nil && r.Rows == 0:
		return err
	}
	return errors.Join(err, a.printForget(scope, act, r, err))
}

// forgetRow is what the --json document of forget has besides the report.
type forgetRow struct {
	Done        bool          `json:"done"`
	TenantID    uuid.NullUUID `json:"tenant_id,omitzero"`
	EntityType  string        `json:"entity_type,omitempty"`
	EntityID    string        `json:"entity_id,omitempty"`
	NotReached  []string      `json:"not_reached"`
	DedupeFreed bool          `json:"dedupe_keys_freed"`
}

// printForget prints what a forget has found and done. failed is the error with which it ended.
func (a *app) printForget(scope admin.ForgetScope, act admin.Act, r admin.ForgetReport, failed error) error {
	done := !act.DryRun && failed == nil
	if a.json {
		return a.printJSON(forgetRow{
			Done: done, TenantID: scope.TenantID, EntityType: scope.EntityType, EntityID: scope.EntityID,
			NotReached: admin.NotForgotten(), DedupeFreed: r.Events > 0,
		}, r)
	}
	if len(r.Tables) == 0 {
		return a.printf("nothing is kept of %s\n", scope)
	}
	topics := [][]any{{"TOPIC", "EVENTS", "DELIVERED", "DEAD", "NOT DELIVERED"}}
	for _, t := range r.Topics {
		topics = append(topics, []any{t.Topic, commas(t.Events), commas(t.Delivered), commas(t.Dead), commas(t.Undelivered)})
	}
	rows := [][]any{{"TABLE", "ROWS", "DELETED", "NOTE"}}
	for _, t := range r.Tables {
		rows = append(rows, []any{t.Table, commas(t.Found), commas(t.Deleted), dash(t.Note)})
	}
	waiting := [][]any{{"NOT DELIVERED", "TOPIC", "WHERE"}}
	for _, e := range r.Listed {
		waiting = append(waiting, []any{e.ID, dash(e.Topic), e.Where})
	}
	if err := a.printTables(topics, rows, waiting); err != nil {
		return err
	}
	if more := r.Undelivered - int64(len(r.Listed)); more > 0 {
		_ = a.printf("and %s more\n", commas(more))
	}
	_ = a.printf("\nforget does not reach:\n")
	for _, line := range admin.NotForgotten() {
		_ = a.printf("- %s\n", line)
	}
	switch {
	case failed != nil:
		return a.printf("\ndeleted %s\n", count(int(r.Rows), "row"))
	case act.DryRun:
		for _, why := range r.Refused {
			a.notef("--yes would be refused: %s", why)
		}
		a.notef("dry run: nothing was changed; add --yes to apply")
		return a.printf("\nwould forget %s\n", scope)
	}
	note := ""
	if r.Resumed {
		note = ", going on with a forget that was broken off"
	}
	if r.Events > 0 {
		note += "; their dedupe keys are free again"
	}
	return a.printf("\nforgot %s: deleted %s, %s of them events%s\n", scope, count(int(r.Rows), "row"), commas(r.Events), note)
}
