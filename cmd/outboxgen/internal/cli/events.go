package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/tool/humantime"
	"github.com/outboxgen/outboxgen/internal/tool/yamlmask"
	"github.com/outboxgen/outboxgen/outbox"
)

func (a *app) eventsCommand() *cobra.Command {
	var db database
	c := group("events", "Look at events: what waits, what was delivered, why something failed, and what happened to a thing",
		`events shows the events of queue topics and of log topics. It changes nothing. Sensitive fields of payloads are
masked, as outbox.yaml marks them; without that file show needs --payload to print a payload.

With --entity, --correlation, --causation, --key or --tenant it prints what happened to a thing: its events over all
topics, in the order of their enqueue, with where each is at its listeners and at the consumers of this database, what
operators did, and below each event those that its handlers have enqueued. An index leads to entities,
correlation ids, causes and dedupe keys. Other filters are compared with one event after another.

--causation looks in the chain of the event. If that event was pruned, and the chain did not begin with it, give
the id of the chain with --correlation instead.`,
		a.eventsList(&db), a.eventsShow(&db))
	c.Example = `  outboxgen events --entity order/4711
  outboxgen events --correlation 0198f2a4-6b1e-7c3d-9a55-3f0d2c8e1b42 --json
  outboxgen events --causation 0198f2a4-6b1e-7c3d-9a55-3f0d2c8e1b42`
	a.life(c, &db)
	db.flags(c)
	return c
}

// filterFlags are the flags that events and dead letters are selected by.
type filterFlags struct {
	ids                                       []string
	listener, tenant, key, since, until, text string
}

func (f *filterFlags) flags(c *cobra.Command) {
	c.Flags().StringSliceVar(&f.ids, "id", nil, "only the events with these `ids`, separated by commas")
	c.Flags().StringVar(&f.listener, "listener", "", "only what this `listener` has parked or given up")
	c.Flags().StringVar(&f.tenant, "tenant", "", "only events of this tenant, a `UUID`")
	c.Flags().StringVar(&f.key, "key", "", "only events with this dedupe `key` or partition key")
	c.Flags().StringVar(&f.since, "since", "",
		"only events enqueued at or after this `time`, like 2026-05-01T12:00:00Z, 2026-05-01 (UTC), or an age like 90m")
	c.Flags().StringVar(&f.until, "until", "", "only events enqueued before this `time` or age")
	c.Flags().StringVar(&f.text, "error", "", "only if the error of the latest failed attempt contains this `text`")
}

// filter returns the filter of the flags.
func (f *filterFlags) filter(now time.Time) (admin.Filter, error) {
	r := admin.Filter{Listener: f.listener, Key: f.key, Error: f.text}
	for _, text := range f.ids {
		id, err := parseID(text)
		if err != nil {
			return r, fmt.Errorf("--id: %w", err)
		}
		r.IDs = append(r.IDs, id)
	}
	if f.tenant != "" {
		id, err := parseID(f.tenant)
		if err != nil {
			return r, fmt.Errorf("--tenant: %q is not a valid tenant: use a UUID", f.tenant)
		}
		r.TenantID = uuid.NullUUID{UUID: id, Valid: true}
	}
	var err error
	if r.Since, err = flagMoment("--since", f.since, now); err != nil {
		return r, err
	}
	if r.Until, err = flagMoment("--until", f.until, now); err != nil {
		return r, err
	}
	if !r.Since.IsZero() && !r.Until.IsZero() && !r.Since.Before(r.Until) {
		return r, errors.New("--since is not before --until")
	}
	return r, nil
}

func parseID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || id == uuid.Nil {
		return id, fmt.Errorf("%q is not a valid event id: use a UUID", text)
	}
	return id, nil
}

// flagMoment returns the time that the text of a flag means; the zero time for "".
func flagMoment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := humantime.Parse(text, now)
	if err != nil {
		return t, fmt.Errorf("%s: %w", flag, err)
	}
	return t, nil
}

// listRounds is how many pages a command reads at most for one list: a filter that no index serves may match little.
const listRounds = 25

func (a *app) eventsList(db *database) *cobra.Command {
	var flags filterFlags
	var thing thingFlags
	var topic, status string
	var page admin.Page
	c := &cobra.Command{
		Use:   "list",
		Short: "List events, by topic, status, entity, chain, tenant, key, time or error",
		Long: `list prints events without their payloads: those first that are not final, by due time; then parked events,
dead letters and delivered events, each with the latest first; then the log, the latest first.

STATUS  pending, processing (a process has claimed it), delivered, dead, parked (a listener keeps it behind a
        failed event of its key), logged (in the log, where each listener has its own position: see show)
DUE     when it is attempted next, or when it was delivered or died

Events of an entity, a chain or a cause are in the order of their enqueue instead. If there are more events, the
command for the next page is printed on stderr. An index leads to events by status, topic, id, dedupe key, entity,
correlation id and cause. Other filters are compared with one event after another. Where they match little, a page may end
before its limit, after some ten seconds, and the next one continues.`,
		Example: `  outboxgen events list --topic mini_chat/turn_finalized --status pending
  outboxgen events list --status dead --since 2h --error timeout
  outboxgen events list --key 5b1f.../order-17`,
		Args: cobra.NoArgs,
	}
	var filter admin.Filter
	c.PreRunE = func(*cobra.Command, []string) (err error) {
		if page.Limit < 1 || page.Limit > 1000 {
			return fmt.Errorf("--limit: %d is not a number from 1 to 1000", page.Limit)
		}
		filter, err = flags.filter(time.Now())
		filter.Status = admin.Status(status)
		filter.Namespace, filter.Topic, _ = strings.Cut(topic, "/")
		if err == nil {
			err = thing.set(&filter)
		}
		return err
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		events := []admin.EventStatus{}
		next := page
		for range listRounds {
			p, err := ops.Events(ctx, filter, next)
			if err != nil {
				return asUsage(err)
			}
			events = append(events, p.Events...)
			next.Limit, next.After = page.Limit-len(events), p.Next
			if p.Next == "" || next.Limit == 0 {
				break
			}
		}
		var err error
		if len(events) == 0 && next.After == "" {
			m, _, err := db.modelAndSchema(a)
			if err == nil {
				err = checkEntity(ctx, ops, m, filter.Entity.Type)
			}
			if err != nil {
				return err
			}
		}
		switch {
		case a.json:
			err = a.printJSON(struct {
				Events []admin.EventStatus `json:"events"`
				Next   string              `json:"next,omitempty"`
			}{events, next.After})
		case len(events) == 0 && next.After == "":
			if err = a.checkNames(ctx, ops, filter); err == nil {
				a.notef("no event matches")
			}
		case len(events) > 0:
			err = a.printTable(eventTable(events))
		}
		if err == nil && next.After != "" && !a.json {
			a.notef("more: %s", a.nextCommand(next.After))
		}
		return err
	})
	c.Flags().StringVar(&topic, "topic", "", "only of this topic, as `namespace/topic`, or of all topics of a namespace")
	c.Flags().StringVar(&status, "status", "",
		"only with this `status`: pending, processing, delivered, dead, parked or logged")
	flags.flags(c)
	thing.flags(c)
	c.Flags().IntVar(&page.Limit, "limit", 50, "`number` of events per page, up to 1000")
	c.Flags().StringVar(&page.After, "after", "",
		"continue with the page behind this `mark`, which the page before has printed")
	return c
}

// asUsage makes a usage error of a mistake in an argument, and of an unknown event.
func asUsage(err error) error {
	if errors.As(err, new(*admin.ArgumentError)) || errors.Is(err, admin.ErrUnknownEvent) {
		return usage(err)
	}
	return err
}

// nextCommand is the command line with another --after.
func (a *app) nextCommand(after string) string {
	words := []string{"outboxgen"}
	for i := 0; i < len(a.args); i++ {
		switch arg := a.args[i]; {
		case arg == "--after":
			i++
		case strings.HasPrefix(arg, "--after="):
		default:
			words = append(words, errtext.Word(arg))
		}
	}
	return strings.Join(append(words, "--after", after), " ")
}

func eventTable(events []admin.EventStatus) [][]any {
	table := [][]any{{"ID", "TOPIC", "STATUS", "ATTEMPTS", "CREATED", "DUE", "ERROR"}}
	for _, e := range events {
		status := string(e.Status)
		if e.Listener != "" {
			status += " at " + e.Listener
		}
		due := e.FinalizedAt
		if due.IsZero() {
			due = e.NextAttemptAt
		}
		line, _, _ := strings.Cut(strings.TrimSpace(e.LastError), "\n")
		table = append(table, []any{
			e.ID, e.Name(), dash(status), e.Attempts, dateText(e.CreatedAt), dateText(due), dash(errtext.Short(line)),
		})
	}
	return table
}

// dateText is second for a time that may be zero.
func dateText(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return second(t)
}

func (a *app) eventsShow(db *database) *cobra.Command {
	var payload bool
	c := &cobra.Command{
		Use:   "show EVENT-ID",
		Short: "Show the life of one event, its headers and its payload",
		Long: `show prints what has become of an event: when it was enqueued, its latest failed attempts with time, worker and
error, and when it was delivered or died; if it waits, how much of the limits of its topic is used, and at which
it waits; for an event of a log topic, where it is at each listener; what consumers of this database and operators
did. Then it prints headers and payload, and, if the event has a cause or has caused others, its chain. Sensitive
fields are masked, and so is what outbox.yaml does not describe. Without outbox.yaml, and for a topic that is not
in it, the payload is only printed with --payload, which masks nothing.`,
		Example: `  outboxgen events show 0198f2a4-6b1e-7c3d-9a55-3f0d2c8e1b42`,
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = run(func(ctx context.Context, args []string) error {
		id, err := uuid.Parse(args[0])
		if err != nil {
			return usage(fmt.Errorf("%q is not a valid event id: use a UUID, as events list shows it", args[0]))
		}
		m, schema, err := db.modelAndSchema(a)
		if err != nil {
			return err
		}
		return a.withAdmin(ctx, db, schema, func(ops *admin.Admin) error {
			e, err := ops.Event(ctx, id)
			if err != nil {
				return asUsage(err)
			}
			chain := e.Chain()
			life, err := ops.Life(ctx, admin.Filter{Correlation: chain}, admin.Page{Limit: chainLimit})
			if err != nil {
				return err
			}
			if len(life.Events) == 1 && len(life.Events[0].Caused) == 0 {
				life.Events = nil // the event alone
			}
			var note string
			if e.Payload, note = payloadFor(m, e, payload); a.json {
				return a.printJSON(e, struct {
					Chain       []*admin.EventLife `json:"chain,omitempty"`
					PayloadNote string             `json:"payload_note,omitempty"`
				}{life.Events, note})
			}
			if err := a.printEvent(e, note); err != nil || len(life.Events) == 0 {
				return err
			}
			_ = a.printf("\nchain\n")
			err = a.printTree(life.Events, 0, e.ID)
			if life.Next != "" {
				a.notef("the chain has more events: outboxgen events --correlation %s", errtext.Word(chain))
			}
			return err
		})
	})
	c.Flags().BoolVar(&payload, "payload", false, "print the payload as it is, with its sensitive fields")
	return c
}

// chainLimit is how many events of a chain show prints.
const chainLimit = 200

// payloadFor returns the payload that may be shown, or nil and the reason.
func payloadFor(m *model.Model, e admin.EventDetail, raw bool) (json.RawMessage, string) {
	if raw {
		return e.Payload, ""
	}
	if m == nil {
		return nil, "not shown: without outbox.yaml nobody knows which fields are sensitive; add --payload to print all of it"
	}
	if masked, ok := yamlmask.New(m).Payload(e.Name(), e.Payload); ok {
		return masked, ""
	}
	return nil, "not shown: the topic is not in outbox.yaml, so nobody knows which fields are sensitive; add --payload " +
		"to print all of it"
}

func (a *app) printEvent(e admin.EventDetail, note string) error {
	facts := [][]any{{"id", e.ID}, {"topic", e.Name()}, {"version", e.Version}}
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, []any{name, errtext.Line(value)})
		}
	}
	if e.TenantID.Valid {
		add("tenant", e.TenantID.UUID.String())
	}
	add("dedupe key", e.DedupeKey)
	add("partition key", e.PartitionKey)
	if e.Entity.Type != "" {
		add("entity", entityText(e.Entity))
	}
	for _, l := range e.Limits {
		key := ""
		if l.Per != "" {
			key = ", key " + brief(l.Key)
		}
		switch {
		case l.Unkeyed:
			key = ", without a key yet: a running dispatcher gives it one"
		default:
			key += ": " + usesText(l.Value, l.Running, l.Starts)
		}
		facts = append(facts, []any{"limit", cmp.Or(l.Per, "topic") + key})
	}
	_ = a.printTable(facts)
	_ = a.printf("\n")
	_ = a.printTable(lifeOf(e))
	if len(e.Headers) > 0 {
		var headers [][]any
		for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
			headers = append(headers, []any{errtext.Line(name), errtext.Line(e.Headers[name])})
		}
		_ = a.printf("\nheaders\n")
		_ = a.printTable(headers)
	}
	if note != "" {
		return a.printf("\npayload %s\n", note)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, e.Payload, "", "  "); err != nil {
		return err
	}
	return a.printf("\npayload\n%s\n", indented.String())
}

func entityText(e outbox.Entity) string {
	return fmt.Sprintf("%s %s, version %d", e.Type, e.ID, e.Version)
}

func uuidText(id uuid.NullUUID) string {
	if !id.Valid {
		return "-"
	}
	return id.UUID.String()
}

// waitLine says at which limit an event waits. It continues the time at which the limit allows a start.
func waitLine(l admin.EventLimit) string {
	text := fmt.Sprintf("waits at the limit of %s (%s)", l.LimitScope, l.Value)
	if l.FreeAt.IsZero() {
		return text + ", until an event of its key ends"
	}
	return text + ", at least until then"
}

// lifeOf is the line of an event's life: what happened, and when.
func lifeOf(e admin.EventDetail) [][]any {
	line := [][]any{{dateText(e.CreatedAt), "enqueued"}}
	failed := func(who string, failures []admin.Failure) {
		for _, f := range failures {
			by := ""
			if f.Worker != uuid.Nil {
				by = " by worker " + f.Worker.String()
			}
			line = append(line, []any{
				dateText(f.At), fmt.Sprintf("%sattempt %d%s failed: %s", who, f.Attempt, by, errtext.Line(f.Error)),
			})
		}
	}
	failed("", e.Failures)
	switch e.Status {
	case admin.StatusPending:
		line = append(line, []any{
			dateText(e.NextAttemptAt), fmt.Sprintf("due: attempt %d of %d", e.Attempts+1, e.MaxAttempts),
		})
		for _, l := range e.Limits {
			if l.Full && !e.NextAttemptAt.After(time.Now()) {
				line = append(line, []any{dateText(l.FreeAt), waitLine(l)})
			}
		}
	case admin.StatusProcessing:
		line = append(line, []any{
			dateText(e.LockedUntil),
			fmt.Sprintf("end of the lease: attempt %d of %d, by worker %s", e.Attempts, e.MaxAttempts, e.LockedBy.UUID),
		})
	case admin.StatusDelivered:
		line = append(line, []any{dateText(e.FinalizedAt), "delivered with attempt " + fmt.Sprint(e.Attempts)})
	case admin.StatusDead:
		line = append(line, []any{
			dateText(e.FinalizedAt), fmt.Sprintf("dead after %s: %s", count(e.Attempts, "attempt"), errtext.Line(e.LastError)),
		})
	case admin.StatusLogged:
	default:
		if len(e.Listeners) == 0 {
			line = append(line, []any{
				"-", "has no state: it is in events, and neither in queue nor in delivered nor in dead_letters",
			})
		} else {
			line = append(line, []any{"-", "pruned from the log: this is the copy of a listener"})
		}
	}
	for _, l := range e.Listeners {
		failed("listener "+l.Listener+": ", l.Failures)
		switch l.Status {
		case admin.StatusDelivered:
			line = append(line, []any{"-", "listener " + l.Listener + ": passed"})
		case admin.StatusParked:
			text := "waits behind a failed event of its key"
			if l.Attempts > 0 {
				text = fmt.Sprintf("failed %s, and is attempted again then: %s", times(l.Attempts), errtext.Line(l.LastError))
			}
			line = append(line, []any{dateText(l.RetryAfter), "listener " + l.Listener + ": parked: " + text})
		case admin.StatusDead:
			line = append(line, []any{
				dateText(l.FinalizedAt),
				fmt.Sprintf("listener %s: dead after %s: %s", l.Listener, count(l.Attempts, "attempt"),
					errtext.Line(l.LastError)),
			})
		default:
			text := "waits"
			if l.Attempts > 0 {
				text = fmt.Sprintf("failed %s, and is attempted again then: %s", times(l.Attempts), errtext.Line(l.LastError))
			}
			line = append(line, []any{dateText(l.RetryAfter), "listener " + l.Listener + ": " + text})
		}
	}
	for _, c := range e.Consumers {
		line = append(line, []any{dateText(c.At), consumerLine(c)})
	}
	for _, act := range e.Acts {
		line = append(line, []any{dateText(act.At), actLine(act)})
	}
	return line
}
