package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/outbox"
)

// thingFlags select the events of a thing.
type thingFlags struct{ entity, correlation, causation string }

func (f *thingFlags) flags(c *cobra.Command) {
	c.Flags().StringVar(&f.entity, "entity", "",
		"only events about this entity, as `type/id`, in the order of their enqueue")
	c.Flags().StringVar(&f.correlation, "correlation", "",
		"only events of the chain with this correlation `id`, or that began with the event of this id, in the order of their enqueue")
	c.Flags().StringVar(&f.causation, "causation", "",
		"only events that the handlers of the event with this `id` have enqueued, in the order of their enqueue")
}

// set adds to a filter what f selects.
func (f *thingFlags) set(filter *admin.Filter) error {
	filter.Correlation = f.correlation
	if f.causation != "" {
		id, err := parseID(f.causation)
		if err != nil {
			return fmt.Errorf("--causation: %w", err)
		}
		filter.Causation = id
	}
	if f.entity == "" {
		return nil
	}
	kind, id, _ := strings.Cut(f.entity, "/")
	if kind == "" || id == "" {
		return fmt.Errorf("--entity: %q is not an entity: use its type and its id, like order/4711", f.entity)
	}
	filter.Entity = outbox.Entity{Type: kind, ID: id}
	return nil
}

// life makes a command of c that prints what happened to a thing, if a flag says to which. Without one it prints its help.
func (a *app) life(c *cobra.Command, db *database) {
	var thing thingFlags
	var flags filterFlags
	var page admin.Page
	thing.flags(c)
	c.Flags().StringVar(&flags.tenant, "tenant", "", "only events of this tenant, a `UUID`")
	c.Flags().StringVar(&flags.key, "key", "", "only events with this dedupe `key` or partition key")
	c.Flags().IntVar(&page.Limit, "limit", 50, "`number` of events per page, without those that they have caused, up to 1000")
	c.Flags().StringVar(&page.After, "after", "",
		"continue with the page behind this `mark`, which the page before has printed")
	help := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		filter, err := flags.filter(time.Now())
		if err == nil {
			err = thing.set(&filter)
		}
		switch {
		case err != nil:
			return err
		case page.Limit < 1 || page.Limit > 1000:
			return fmt.Errorf("--limit: %d is not a number from 1 to 1000", page.Limit)
		case thing == (thingFlags{}) && flags.tenant == "" && flags.key == "":
			if c.Flags().Changed("limit") || c.Flags().Changed("after") {
				return errors.New("say whose events: --entity, --correlation, --causation, --key or --tenant; or use events list")
			}
			return help(c, args)
		}
		return run(func(ctx context.Context, _ []string) error {
			m, schema, err := db.modelAndSchema(a)
			if err != nil {
				return err
			}
			return a.withAdmin(ctx, db, schema, func(ops *admin.Admin) error {
				return a.printLife(ctx, ops, m, filter, page)
			})
		})(c, args)
	}
}

func (a *app) printLife(
	ctx context.Context, ops *admin.Admin, m *model.Model, filter admin.Filter, page admin.Page,
) error {
	life := admin.LifePage{Events: []*admin.EventLife{}}
	for range listRounds {
		p, err := ops.Life(ctx, filter, page)
		if err != nil {
			return asUsage(err)
		}
		p.Events = append(life.Events, p.Events...)
		p.More = p.More || life.More
		if life = p; len(life.Events) > 0 || life.Next == "" {
			break
		}
		page.After = life.Next
	}
	if len(life.Events) == 0 && page.After == "" {
		if err := checkEntity(ctx, ops, m, filter.Entity.Type); err != nil {
			return err
		}
	}
	if a.json {
		return a.printJSON(life)
	}
	if len(life.Events) == 0 && life.Next == "" {
		a.notef("no event matches; events are deleted at the end of their retention")
		return nil
	}
	err := a.printTree(life.Events, 0, filter.Causation)
	if len(life.Versions) > 0 {
		_ = a.printf("\n")
	}
	for _, v := range life.Versions {
		from := ""
		if v.Source != "" {
			from = ", from " + v.Source
		}
		err = a.printf("consumer %s has version %d of %s/%s%s, since %s by event %s\n", errtext.Line(v.Consumer), v.Version,
			errtext.Line(filter.Entity.Type), errtext.Line(filter.Entity.ID), errtext.Line(from), second(v.At), v.EventID)
	}
	if life.More {
		a.notef("these events have caused more than is shown; events --correlation ID lists all of a chain")
	}
	if life.Next != "" {
		a.notef("more: %s", a.nextCommand(life.Next))
	}
	return err
}

// checkEntity returns an error if no event can be about an entity of this type: none of outbox.yaml, and none in the
// database.
func checkEntity(ctx context.Context, ops *admin.Admin, m *model.Model, kind string) error {
	if kind == "" {
		return nil
	}
	types, err := ops.EntityTypes(ctx)
	if err != nil {
		return err
	}
	if m != nil {
		for _, ns := range m.Namespaces {
			for _, t := range ns.Topics {
				if t.Entity != nil {
					types = append(types, t.Entity.Type)
				}
			}
		}
	}
	slices.Sort(types)
	types = slices.Compact(types)
	switch {
	case slices.Contains(types, kind):
		return nil
	case len(types) == 0:
		return usage(fmt.Errorf("--entity: no event is about an entity: give a topic the key entity in outbox.yaml"))
	}
	return usage(fmt.Errorf("--entity: no event is about an entity of type %q%s: use %s", kind,
		diag.NewReporter("").DidYouMean(kind, types), strings.Join(types, ", ")))
}

// printTree prints events, and below each what it has caused. here is the event that was asked for: it is marked, and not
// named as the cause of others.
func (a *app) printTree(events []*admin.EventLife, depth int, here uuid.UUID) error {
	var err error
	for _, e := range events {
		status := string(e.Status)
		if status == "" {
			status = "pruned"
		}
		if e.Status != admin.StatusLogged && e.Attempts > 0 {
			status += " after " + count(e.Attempts, "attempt")
		}
		branch := ""
		if depth > 0 {
			branch = strings.Repeat("   ", depth-1) + "└─ "
		}
		mark := ""
		if e.ID == here {
			mark = "  <- this event"
		}
		about := ""
		if e.Entity.Type != "" {
			about = "  " + errtext.Line(e.Entity.Type+"/"+e.Entity.ID)
			if e.Entity.Version != 0 {
				about += fmt.Sprintf(" version %d", e.Entity.Version)
			}
		}
		err = a.printf("%s  %s%s  %s  %s%s%s\n", dateText(e.CreatedAt), branch, e.Name(), e.ID, status, about, mark)
		indent := strings.Repeat(" ", len("2026-05-01T12:00:00Z  ")) + strings.Repeat("   ", depth)
		if depth == 0 && e.Causation != "" && e.Causation != here.String() {
			err = a.printf("%scaused by %s, which is not here\n", indent, errtext.Line(e.Causation))
		}
		for _, line := range aroundEvent(e) {
			err = a.printf("%s%s\n", indent, line)
		}
		if err := a.printTree(e.Caused, depth+1, here); err != nil {
			return err
		}
	}
	return err
}

// aroundEvent says in lines what happened to an event besides its state.
func aroundEvent(e *admin.EventLife) []string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, errtext.Line(fmt.Sprintf(format, args...))) }
	if e.LastError != "" {
		add("last error: %s", brief(e.LastError))
	}
	for _, l := range e.Listeners {
		text := string(l.Status)
		if n := max(l.Attempts, len(l.Failures)); n > 0 {
			text += ", " + count(n, "failed attempt")
		}
		if l.LastError != "" {
			text += ": " + brief(l.LastError)
		}
		add("listener %s: %s", l.Listener, text)
	}
	for _, c := range e.Consumers {
		lines = append(lines, consumerLine(c))
	}
	for _, act := range e.Acts {
		lines = append(lines, actLine(act))
	}
	return lines
}

func consumerLine(c admin.EventAtConsumer) string {
	text := fmt.Sprintf("consumer %s: %s at %s", c.Consumer, c.Status, second(c.At))
	if c.Attempts > 0 {
		text += " after " + count(c.Attempts, "attempt") + ": " + brief(c.LastError)
	}
	return errtext.Line(text)
}

// actLine says what an operator did. One that only fits the event may not have touched it.
func actLine(act admin.EventAct) string {
	text := fmt.Sprintf("%s by %s at %s", act.Action, act.Who, second(act.At))
	if act.Why != "" {
		text += ": " + act.Why
	}
	if !act.Certain {
		text += " (of " + act.Scope + ", which may include it)"
	}
	return errtext.Line(text)
}
