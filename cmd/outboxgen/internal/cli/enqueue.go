package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/tool/compose"
	"github.com/outboxgen/outboxgen/internal/tool/yamlmask"
	"github.com/outboxgen/outboxgen/outbox"
)

// enqueueFlags are the flags of enqueue.
type enqueueFlags struct {
	data, notBefore string
	headers         []string
	payload, yes    bool
	person          personFlags
}

func (a *app) enqueueCommand() *cobra.Command {
	var db database
	var f enqueueFlags
	c := &cobra.Command{
		Use:   "enqueue NAMESPACE/TOPIC",
		Short: "Enqueue one event by hand, checked as generated code checks it",
		Long: `enqueue makes an event of a payload in JSON, and of the topic in outbox.yaml. The payload must have the fields of
the topic, and no others, and keep their bounds. The tenant and the keys come from it, as in generated code. Without
--yes enqueue shows the row that it would write, with sensitive fields masked, and whether an event with its dedupe key is
there already: then nothing is written. The audit records who has enqueued what event, and not its payload.

The role needs to be a producer and an operator: see outboxgen migrate get --roles.`,
		Example: `  outboxgen enqueue mini_chat/turn_finalized --data @turn.json
  outboxgen enqueue mini_chat/turn_finalized --data @turn.json --reason 'ticket 812' --yes
  jq .payload dead.json | outboxgen enqueue mini_chat/turn_finalized --data - --not-before 2h --yes`,
		Args: cobra.ExactArgs(1),
	}
	db.flags(c)
	c.Flags().StringVar(&f.data, "data", "", "the payload: `JSON`, @ and the name of a file, or - for stdin")
	c.Flags().StringVar(&f.notBefore, "not-before", "",
		"`when` the first attempt may begin: a duration like 2h, or a time like 2026-05-01T12:00:00Z; for queue topics")
	c.Flags().StringArrayVar(&f.headers, "header", nil, "a header, as `name=value`; may be repeated")
	c.Flags().BoolVar(&f.payload, "payload", false, "show the payload as it is, with its sensitive fields")
	c.Flags().BoolVar(&f.yes, "yes", false, "write the event")
	f.person.flags(c)
	var m outbox.Message
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		m, err = f.message(args[0], time.Now())
		return err
	}
	c.RunE = run(func(ctx context.Context, _ []string) error {
		if !db.hasConfig() {
			return usage(errors.New("the payload cannot be checked without the YAML: name it with --config"))
		}
		spec, err := db.model(a)
		if err != nil {
			return err
		}
		schema := spec.Schema
		if db.schema != "" {
			if schema, err = db.schemaName(a); err != nil {
				return err
			}
		}
		t := topicOf(spec, m.Namespace, m.Topic)
		if t == nil {
			name, names := m.Namespace+"/"+m.Topic, topicNames(spec)
			return usage(fmt.Errorf("%s has no topic %s%s; it has %s", db.config, name,
				diag.NewReporter("").DidYouMean(name, names), namesText(names)))
		}
		data, err := f.read(a.Stdin)
		if err != nil {
			return usage(err)
		}
		e, found := compose.Of(t, data)
		if len(found) > 0 {
			return &failure{exitFindings, fmt.Errorf("--data: the payload does not fit %s: %s", t.FullName(), compose.Text(found))}
		}
		fill(&m, t, e)
		return a.withAdmin(ctx, &db, schema, func(ops *admin.Admin) error {
			act := admin.Act{Who: cmp.Or(f.person.who, defaultWho()), Why: f.person.why, DryRun: !f.yes}
			receipt, err := ops.Enqueue(ctx, m, act)
			if err != nil {
				return err
			}
			if !f.payload {
				m.Payload, _ = yamlmask.New(spec).Payload(t.FullName(), m.Payload) // of a topic that it knows
			}
			return a.printEnqueued(m, receipt, f.yes)
		})
	})
	return c
}

// message returns what the flags and the argument say of the event.
func (f *enqueueFlags) message(name string, now time.Time) (m outbox.Message, err error) {
	if m.Namespace, m.Topic, _ = strings.Cut(name, "/"); m.Namespace == "" || m.Topic == "" {
		return m, fmt.Errorf("%q is not a valid topic: use a name like mini_chat/turn_finalized", name)
	}
	if f.data == "" {
		return m, errors.New("--data is missing: give the payload as JSON, @file, or - for stdin")
	}
	for _, text := range f.headers {
		name, value, ok := strings.Cut(text, "=")
		if _, twice := m.Headers[name]; !ok || name == "" || twice {
			return m, fmt.Errorf("--header: %q is not name=value, or its name is there twice", text)
		}
		if m.Headers == nil {
			m.Headers = make(map[string]string)
		}
		m.Headers[name] = value
	}
	if f.notBefore != "" {
		m.NotBefore, err = time.Parse(time.RFC3339, f.notBefore)
		if d, notDuration := time.ParseDuration(f.notBefore); notDuration == nil {
			m.NotBefore, err = now.Add(d), nil
		}
		if err != nil {
			return m, fmt.Errorf("--not-before: %q is not a valid time: use a duration like 2h or a time like 2026-05-01T12:00:00Z",
				f.notBefore)
		}
	}
	return m, nil
}

// read returns the payload.
func (f *enqueueFlags) read(stdin io.Reader) (json.RawMessage, error) {
	var text []byte
	var err error
	switch file, named := strings.CutPrefix(f.data, "@"); {
	case named:
		text, err = os.ReadFile(file)
	case f.data == "-":
		text, err = io.ReadAll(io.LimitReader(stdin, 2*outbox.MaxPayloadBytes))
	default:
		text = []byte(f.data)
	}
	if err != nil {
		return nil, fmt.Errorf("--data: %w", err)
	}
	return text, nil
}

func topicNames(m *model.Model) (names []string) {
	for _, n := range m.Namespaces {
		for _, t := range n.Topics {
			names = append(names, t.FullName())
		}
	}
	return names
}

// fill makes of m the event e of a topic, as generated code would.
func fill(m *outbox.Message, t *model.Topic, e compose.Event) {
	m.Log, m.Version = t.Delivery == model.Log, t.Version
	m.TenantID, m.DedupeKey, m.PartitionKey = e.TenantID, e.DedupeKey, e.PartitionKey
	m.Entity = outbox.Entity{Type: e.EntityType, ID: e.EntityID, Version: e.EntityVersion}
	m.Payload, m.LimitKeys = e.Payload, e.LimitKeys
	if m.Log {
		return
	}
	m.Fairness, m.MaxAttempts = outbox.Fairness(t.Fairness), t.Retry.MaxAttempts
	for _, l := range t.Limits {
		m.Limits = append(m.Limits, outbox.Limit{
			Per: l.Per, Concurrency: l.Concurrency, Rate: outbox.Rate{Events: l.Rate.Events, Period: l.Rate.Period},
		})
	}
}

// enqueuedRow is the --json document of enqueue.
type enqueuedRow struct {
	Done          bool              `json:"done"`
	Duplicate     bool              `json:"duplicate"`
	ID            *uuid.UUID        `json:"id,omitempty"` // that of the other event if it is a duplicate
	Topic         string            `json:"topic"`
	Version       int               `json:"version"`
	TenantID      uuid.NullUUID     `json:"tenant_id,omitzero"`
	DedupeKey     string            `json:"dedupe_key,omitempty"`
	PartitionKey  string            `json:"partition_key,omitempty"`
	EntityType    string            `json:"entity_type,omitempty"`
	EntityID      string            `json:"entity_id,omitempty"`
	EntityVersion int64             `json:"entity_version,omitempty"`
	NotBefore     time.Time         `json:"not_before,omitzero"`
	Headers       map[string]string `json:"headers,omitempty"`
	Payload       json.RawMessage   `json:"payload,omitempty"`
}

func (a *app) printEnqueued(m outbox.Message, r outbox.Receipt, yes bool) error {
	row := enqueuedRow{
		Done: yes && !r.Duplicate, Duplicate: r.Duplicate, Topic: m.Namespace + "/" + m.Topic, Version: m.Version,
		TenantID: m.TenantID, DedupeKey: m.DedupeKey, PartitionKey: m.PartitionKey, EntityType: m.Entity.Type,
		EntityID: m.Entity.ID, EntityVersion: m.Entity.Version, NotBefore: m.NotBefore.UTC(), Headers: m.Headers,
		Payload: m.Payload,
	}
	if r.ID != uuid.Nil {
		row.ID = &r.ID
	}
	switch {
	case a.json:
		return a.printJSON(row)
	case r.Duplicate:
		return a.printf("event %s has the dedupe key already: nothing is written\n", r.ID)
	case yes:
		return a.printf("enqueued %s as event %s\n", row.Topic, r.ID)
	}
	table := [][]any{{"COLUMN", "VALUE"}, {"topic", row.Topic}, {"version", row.Version}}
	add := func(name, value string) {
		if value != "" {
			table = append(table, []any{name, value})
		}
	}
	if m.TenantID.Valid {
		add("tenant_id", m.TenantID.UUID.String())
	}
	add("dedupe_key", brief(m.DedupeKey))
	add("partition_key", brief(m.PartitionKey))
	if m.Entity.Type != "" {
		add("entity", brief(fmt.Sprintf("%s/%s", m.Entity.Type, m.Entity.ID)))
		add("entity_version", fmt.Sprint(m.Entity.Version))
	}
	if !m.NotBefore.IsZero() {
		add("not_before", second(m.NotBefore))
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		add("header "+brief(name), brief(m.Headers[name]))
	}
	add("payload", string(m.Payload))
	if err := a.printTable(table); err != nil {
		return err
	}
	return a.printf("%s it\n", a.verb(false, "", "enqueue"))
}
