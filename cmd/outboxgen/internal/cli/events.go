package cli

import (
	"bytes"
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
	"github.com/outboxgen/outboxgen/internal/tool/yamlmask"
)

func (a *app) eventsCommand() *cobra.Command {
	var db database
	c := group("events", "Look at events: what waits, what was delivered, and why something failed",
		`events shows the events of queue topics and of log topics. It changes nothing. Sensitive fields of payloads are
masked, as outbox.yaml marks them; without that file show needs --payload to print a payload.`,
		a.eventsList(&db), a.eventsShow(&db))
	db.flags(c)
	return c
}

// eventFilter has the flags that make an admin.Filter.
type eventFilter struct {
	topic, listener, tenant, status, key, since, until, errorText string
	ids                                                           []string
}

func (f *eventFilter) flags(c *cobra.Command) {
	c.Flags().StringVar(&f.topic, "topic", "", "only of this topic, as `namespace/topic`, or of all topics of a namespace")
	c.Flags().StringVar(&f.status, "status", "", "only with this `status`: pending, processing, delivered, dead, parked or logged")
	c.Flags().StringVar(&f.listener, "listener", "", "only what this `listener` has parked or has as dead letters")
	c.Flags().StringVar(&f.tenant, "tenant", "", "only of this tenant, a `UUID`")
	c.Flags().StringVar(&f.key, "key", "", "only with this dedupe `key` or partition key")
	c.Flags().StringSliceVar(&f.ids, "id", nil, "only these events: `UUIDs`, separated by commas")
	c.Flags().StringVar(&f.since, "since", "", "only enqueued since this `time`, like 2026-05-01T12:00:00Z or 2026-05-01 (UTC), or an age like 90m")
	c.Flags().StringVar(&f.until, "until", "", "only enqueued before this `time` or age")
	c.Flags().StringVar(&f.errorText, "error", "", "only if the error of the latest failed attempt contains this `text`")
}

func (f *eventFilter) filter(now time.Time) (admin.Filter, error) {
	out := admin.Filter{Listener: f.listener, Status: admin.Status(f.status), Key: f.key, Error: f.errorText}
	out.Namespace, out.Topic, _ = strings.Cut(f.topic, "/")
	if f.tenant != "" {
		id, err := uuid.Parse(f.tenant)
		if err != nil {
			return out, fmt.Errorf("--tenant: %q is not a valid UUID", f.tenant)
		}
		out.TenantID = uuid.NullUUID{UUID: id, Valid: true}
	}
	for _, text := range f.ids {
		id, err := uuid.Parse(text)
		if err != nil {
			return out, fmt.Errorf("--id: %q is not a valid UUID", text)
		}
		out.IDs = append(out.IDs, id)
	}
	for name, part := range map[string]struct {
		text string
		to   *time.Time
	}{"since": {f.since, &out.Since}, "until": {f.until, &out.Until}} {
		t, err := flagMoment("--"+name, part.text, now)
		if err != nil {
			return out, err
		}
		*part.to = t
	}
	return out, nil
}

// listRounds is how many pages a command reads at most for one list: a filter that no index serves may match little.
const listRounds = 25

func (a *app) eventsList(db *database) *cobra.Command {
	var flags eventFilter
	var page admin.Page
	c := &cobra.Command{
		Use:   "list",
		Short: "List events, by topic, status, tenant, key, time or error",
		Long: `list prints events without their payloads: those first that are not final, by due time; then parked events,
dead letters and delivered events, each with the latest first; then the log, the latest first.

STATUS  pending, processing (a process has claimed it), delivered, dead, parked (a listener keeps it behind a
        failed event of its key), logged (in the log, where each listener has its own position: see show)
DUE     when it is attempted next, or when it was delivered or died

If there are more events, the command for the next page is printed on stderr. An index leads to events by
status, topic, id and dedupe key. Other filters are compared with one event after another. Where they match
little, a page may end before its limit, after some ten seconds, and the next one continues.`,
		Example: `  outboxgen events list --topic mini_chat/turn_finalized --status pending
  outboxgen events list --status dead --since 2h --error timeout
  outboxgen events list --key 5b1f.../order-17`,
		Args: cobra.NoArgs,
	}
	c.PreRunE = func(*cobra.Command, []string) error {
		if page.Limit < 1 || page.Limit > 1000 {
			return fmt.Errorf("--limit: %d is not a number from 1 to 1000", page.Limit)
		}
		_, err := flags.filter(time.Now())
		return err
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		filter, err := flags.filter(time.Now())
		if err != nil {
			return err
		}
		var events []admin.EventStatus
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
		switch {
		case a.json:
			err = a.printJSON(struct {
				Events []eventRow `json:"events"`
				Next   string     `json:"next,omitempty"`
			}{eventRows(events), next.After})
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
	flags.flags(c)
	c.Flags().IntVar(&page.Limit, "limit", 50, "`number` of events per page, up to 1000")
	c.Flags().StringVar(&page.After, "after", "", "continue with the page behind this `mark`, which the page before has printed")
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
			words = append(words, quoteWord(arg))
		}
	}
	return strings.Join(append(words, "--after", after), " ")
}

// quoteWord quotes a word for a shell if it needs to be.
func quoteWord(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+", r)
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// eventRow is an event in a --json document.
type eventRow struct {
	ID            string     `json:"id"`
	Topic         string     `json:"topic"`
	Listener      string     `json:"listener,omitempty"`
	Version       int        `json:"version"`
	TenantID      string     `json:"tenant_id,omitempty"`
	DedupeKey     string     `json:"dedupe_key,omitempty"`
	PartitionKey  string     `json:"partition_key,omitempty"`
	Status        string     `json:"status"`
	Attempts      int        `json:"attempts"`
	MaxAttempts   int        `json:"max_attempts,omitempty"`
	CreatedAt     *time.Time `json:"created_at,omitempty"`
	NextAttemptAt *time.Time `json:"next_attempt_at,omitempty"`
	LockedBy      string     `json:"locked_by,omitempty"`
	LockedUntil   *time.Time `json:"locked_until,omitempty"`
	FinalizedAt   *time.Time `json:"finalized_at,omitempty"`
	LastError     string     `json:"last_error,omitempty"`
}

func newEventRow(e admin.EventStatus) eventRow {
	row := eventRow{
		ID: e.ID.String(), Topic: e.Name(), Listener: e.Listener, Version: e.Version, DedupeKey: e.DedupeKey, PartitionKey: e.PartitionKey,
		Status: string(e.Status), Attempts: e.Attempts, MaxAttempts: e.MaxAttempts, CreatedAt: jsonTime(e.CreatedAt), NextAttemptAt: jsonTime(e.NextAttemptAt),
		LockedUntil: jsonTime(e.LockedUntil), FinalizedAt: jsonTime(e.FinalizedAt), LastError: e.LastError,
	}
	if e.TenantID.Valid {
		row.TenantID = e.TenantID.UUID.String()
	}
	if e.LockedBy.Valid {
		row.LockedBy = e.LockedBy.UUID.String()
	}
	return row
}

func eventRows(events []admin.EventStatus) []eventRow {
	rows := make([]eventRow, len(events))
	for i, e := range events {
		rows[i] = newEventRow(e)
	}
	return rows
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
		table = append(table, []any{e.ID, e.Name(), dash(status), e.Attempts, dateText(e.CreatedAt), dateText(due), dash(errtext.Short(line))})
	}
	return table
}

func dateText(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}

func (a *app) eventsShow(db *database) *cobra.Command {
	var payload bool
	c := &cobra.Command{
		Use:   "show EVENT-ID",
		Short: "Show the life of one event, its headers and its payload",
		Long: `show prints what has become of an event: when it was enqueued, its latest failed attempts with time, worker and
error, and when it was delivered or died; for an event of a log topic, where it is at each listener. Then it
prints headers and payload. Sensitive fields are masked, and so is what outbox.yaml does not describe. Without
outbox.yaml, and for a topic that is not in it, the payload is only printed with --payload, which masks nothing.`,
		Example: `  outboxgen events show 0198f2a4-6b1e-7c3d-9a55-3f0d2c8e1b42`,
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = run(func(ctx context.Context, args []string) error {
		id, err := uuid.Parse(args[0])
		if err != nil {
			return usage(fmt.Errorf("%q is not a valid event id: use a UUID, as events list shows it", args[0]))
		}
		m, schema, err := db.modelAndSchema(a, c.Flags().Changed("config"))
		if err != nil {
			return err
		}
		return a.withAdmin(ctx, db, schema, func(ops *admin.Admin) error {
			e, err := ops.Event(ctx, id)
			if err != nil {
				return asUsage(err)
			}
			shown, note := payloadFor(m, e, payload)
			if a.json {
				return a.printJSON(newEventDocument(e, shown, note))
			}
			return a.printEvent(e, shown, note)
		})
	})
	c.Flags().BoolVar(&payload, "payload", false, "print the payload as it is, with its sensitive fields")
	return c
}

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
	return nil, "not shown: the topic is not in outbox.yaml, so nobody knows which fields are sensitive; add --payload to print all of it"
}

type failureRow struct {
	Attempt int        `json:"attempt"`
	At      *time.Time `json:"at,omitempty"`
	Worker  string     `json:"worker,omitempty"`
	Error   string     `json:"error"`
}

type eventAtListenerRow struct {
	Listener    string       `json:"listener"`
	Status      string       `json:"status"`
	Attempts    int          `json:"attempts,omitempty"`
	RetryAfter  *time.Time   `json:"retry_after,omitempty"`
	FinalizedAt *time.Time   `json:"finalized_at,omitempty"`
	LastError   string       `json:"last_error,omitempty"`
	Failures    []failureRow `json:"failures,omitempty"`
}

// newFailureRows are the rows of failures, which are not nil: an event without any says so.
func newFailureRows(failures []admin.Failure) []failureRow {
	rows := []failureRow{}
	for _, f := range failures {
		row := failureRow{Attempt: f.Attempt, At: jsonTime(f.At), Error: f.Error}
		if f.Worker != uuid.Nil {
			row.Worker = f.Worker.String()
		}
		rows = append(rows, row)
	}
	return rows
}

// eventDocument is the --json document of show.
type eventDocument struct {
	eventRow
	EntityType    string               `json:"entity_type,omitempty"`
	EntityID      string               `json:"entity_id,omitempty"`
	EntityVersion int64                `json:"entity_version,omitempty"`
	Failures      []failureRow         `json:"failures"`
	Listeners     []eventAtListenerRow `json:"listeners,omitzero"`
	Headers       map[string]string    `json:"headers"`
	Payload       json.RawMessage      `json:"payload,omitempty"`
	PayloadNote   string               `json:"payload_note,omitempty"`
}

func newEventDocument(e admin.EventDetail, payload json.RawMessage, note string) eventDocument {
	d := eventDocument{
		eventRow: newEventRow(e.EventStatus), EntityType: e.Entity.Type, EntityID: e.Entity.ID, EntityVersion: e.Entity.Version,
		Failures: newFailureRows(e.Failures), Headers: e.Headers, Payload: payload, PayloadNote: note,
	}
	if d.Headers == nil {
		d.Headers = map[string]string{}
	}
	for _, l := range e.Listeners {
		d.Listeners = append(d.Listeners, eventAtListenerRow{l.Listener, string(l.Status), l.Attempts, jsonTime(l.RetryAfter), jsonTime(l.FinalizedAt), l.LastError, newFailureRows(l.Failures)})
	}
	return d
}

func (a *app) printEvent(e admin.EventDetail, payload json.RawMessage, note string) error {
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
		add("entity", fmt.Sprintf("%s %s, version %d", e.Entity.Type, e.Entity.ID, e.Entity.Version))
	}
	if err := a.printTable(facts); err != nil {
		return err
	}
	if err := a.printf("\n"); err != nil {
		return err
	}
	if err := a.printTable(lifeOf(e)); err != nil {
		return err
	}
	if len(e.Headers) > 0 {
		var headers [][]any
		for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
			headers = append(headers, []any{errtext.Line(name), errtext.Line(e.Headers[name])})
		}
		if err := a.printf("\nheaders\n"); err != nil {
			return err
		}
		if err := a.printTable(headers); err != nil {
			return err
		}
	}
	if note != "" {
		return a.printf("\npayload %s\n", note)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, payload, "", "  "); err != nil {
		return err
	}
	return a.printf("\npayload\n%s\n", indented.String())
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
			line = append(line, []any{dateText(f.At), fmt.Sprintf("%sattempt %d%s failed: %s", who, f.Attempt, by, errtext.Line(f.Error))})
		}
	}
	failed("", e.Failures)
	switch e.Status {
	case admin.StatusPending:
		line = append(line, []any{dateText(e.NextAttemptAt), fmt.Sprintf("due: attempt %d of %d", e.Attempts+1, e.MaxAttempts)})
	case admin.StatusProcessing:
		line = append(line, []any{dateText(e.LockedUntil), fmt.Sprintf("end of the lease: attempt %d of %d, by worker %s", e.Attempts, e.MaxAttempts, e.LockedBy.UUID)})
	case admin.StatusDelivered:
		line = append(line, []any{dateText(e.FinalizedAt), "delivered with attempt " + fmt.Sprint(e.Attempts)})
	case admin.StatusDead:
		line = append(line, []any{dateText(e.FinalizedAt), fmt.Sprintf("dead after %s: %s", count(e.Attempts, "attempt"), errtext.Line(e.LastError))})
	case admin.StatusLogged:
	default:
		if len(e.Listeners) == 0 {
			line = append(line, []any{"-", "has no state: it is in events, and neither in queue nor in delivered nor in dead_letters"})
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
			line = append(line, []any{dateText(l.FinalizedAt), fmt.Sprintf("listener %s: dead after %s: %s", l.Listener, count(l.Attempts, "attempt"), errtext.Line(l.LastError))})
		default:
			text := "waits"
			if l.Attempts > 0 {
				text = fmt.Sprintf("failed %s, and is attempted again then: %s", times(l.Attempts), errtext.Line(l.LastError))
			}
			line = append(line, []any{dateText(l.RetryAfter), "listener " + l.Listener + ": " + text})
		}
	}
	return line
}
