package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/tool/payloadcheck"
	"github.com/outboxgen/outboxgen/internal/tool/yamlmask"
)

// letterRow is a dead letter in JSON documents and lines.
type letterRow struct {
	No           int64             `json:"no"`
	Listener     string            `json:"listener,omitempty"`
	Consumer     string            `json:"consumer,omitempty"`
	Place        string            `json:"place,omitempty"`
	ID           uuid.UUID         `json:"id"`
	Topic        string            `json:"topic"`
	Version      int               `json:"version"`
	TenantID     *uuid.UUID        `json:"tenant_id,omitempty"`
	DedupeKey    string            `json:"dedupe_key,omitempty"`
	PartitionKey string            `json:"partition_key,omitempty"`
	Entity       *letterEntity     `json:"entity,omitempty"`
	Headers      map[string]string `json:"headers,omitempty"`
	Payload      json.RawMessage   `json:"payload,omitempty"`
	CreatedAt    time.Time         `json:"created_at"`
	ReceivedAt   *time.Time        `json:"received_at,omitempty"` // by a consumer
	DiedAt       time.Time         `json:"died_at"`
	Attempts     int               `json:"attempts"`
	MaxAttempts  int               `json:"max_attempts,omitempty"`
	Error        string            `json:"error"`
	Failures     []failureRow      `json:"failures,omitempty"`
}

type letterEntity struct {
	Type    string `json:"type"`
	ID      string `json:"id"`
	Version int64  `json:"version"`
}

func newLetterRow(d admin.DeadLetter) letterRow {
	r := letterRow{
		No: d.No, Listener: d.Listener, Consumer: d.Consumer, Place: d.Place, ID: d.ID, Topic: letterTopic(d.Namespace, d.Topic), Version: d.Version, DedupeKey: d.DedupeKey,
		PartitionKey: d.PartitionKey, CreatedAt: d.CreatedAt.UTC(), DiedAt: d.DiedAt.UTC(), Attempts: d.Attempt,
		MaxAttempts: d.MaxAttempts, Error: d.Error, Failures: newFailureRows(d.Failures), Headers: d.Headers,
	}
	if d.TenantID.Valid {
		r.TenantID = &d.TenantID.UUID
	}
	if !d.ReceivedAt.IsZero() {
		received := d.ReceivedAt.UTC()
		r.ReceivedAt = &received
	}
	if d.Entity.Type != "" {
		r.Entity = &letterEntity{d.Entity.Type, d.Entity.ID, d.Entity.Version}
	}
	return r
}

// payloads says how a command shows payloads: as they are, or masked by the YAML.
type payloads struct {
	plain  bool
	masker *yamlmask.Masker
	hidden int // payloads that were left out because no YAML describes them
}

func (p *payloads) flags(c *cobra.Command) {
	c.Flags().BoolVar(&p.plain, "payload", false, "show payloads as they are, with the fields that outbox.yaml calls sensitive")
}

// load reads the YAML that says what is masked, if there is one.
func (p *payloads) load(a *app, db *database, configGiven bool) error {
	if p.plain || !configGiven && !isFile(db.config) {
		return nil
	}
	m, err := (&source{path: db.config, format: string(diag.Text)}).model(a)
	if err == nil {
		p.masker = yamlmask.New(m)
	}
	return err
}

func (p *payloads) fill(r *letterRow, d admin.DeadLetter) {
	if p.plain {
		r.Payload = d.Payload
	} else if masked, ok := p.masker.Payload(r.Topic, d.Payload); ok {
		r.Payload = masked
	} else {
		p.hidden++
	}
}

// note says why payloads are missing.
func (p *payloads) note(a *app) {
	if p.hidden > 0 {
		a.notef("%s left out, because no outbox.yaml says what is sensitive there: use --config, or --payload to show everything", count(p.hidden, "payload"))
	}
}

func (a *app) deadList(db *database) *cobra.Command {
	var f deadFlags
	var limit int
	var before int64
	c := &cobra.Command{
		Use:   "list [TOPIC]",
		Short: "List dead letters, newest first",
		Long: `list shows dead letters without their payloads, those that died last first. LISTENER is the listener that gave the
event up; it is - for a queue topic. With --consumer they are those of a consumer group, the messages that arrived last
first; PLACE is where their broker had them. If there are more than --limit, list says how to get the next page.`,
		Example: `  outboxgen dead list
  outboxgen dead list mini_chat/turn_finalized --tenant 6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab
  outboxgen dead list --listener companion --error timeout --json`,
		Args: topicArgs,
	}
	var filter admin.Filter
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		switch {
		case limit < 1 || limit > maxListed:
			return fmt.Errorf("--limit: %d is not between 1 and %d", limit, maxListed)
		case before < 0:
			return fmt.Errorf("--before: %d is not a number that list has shown", before)
		}
		filter, err = f.filter(args, time.Now())
		return err
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		letters, err := ops.DeadLetters(ctx, filter, before, limit+1)
		if err == nil && len(letters) == 0 {
			err = a.checkNames(ctx, ops, filter)
		}
		if err != nil {
			return err
		}
		next := int64(0)
		if len(letters) > limit {
			letters = letters[:limit]
			next = letters[limit-1].No
		}
		rows := make([]letterRow, len(letters))
		table := [][]any{{"DIED", "TOPIC", "LISTENER", "EVENT", "TENANT", "ATTEMPTS", "ERROR"}}
		for i, d := range letters {
			r := newLetterRow(d)
			rows[i] = r
			tenant := "-"
			if r.TenantID != nil {
				tenant = r.TenantID.String()
			}
			table = append(table, []any{second(r.DiedAt), r.Topic, dash(r.Listener + r.Place), r.ID, tenant, r.Attempts, dash(errtext.Short(r.Error))})
		}
		switch {
		case a.json:
			return a.printJSON(struct {
				Dead []letterRow `json:"dead"`
				Next int64       `json:"next,omitempty"` // --before of the next page
			}{rows, next})
		case len(rows) == 0:
			a.notef("no dead letters")
			return a.noteConsumers(ctx, ops, filter)
		}
		if filter.Consumer != "" {
			table[0][2] = "PLACE"
		}
		if err := a.printTable(table); err != nil {
			return err
		}
		if next > 0 {
			a.notef("there are more: add --before %d", next)
		}
		return a.noteConsumers(ctx, ops, filter)
	})
	f.flags(c, false)
	c.Flags().IntVar(&limit, "limit", 50, "show at most `n` dead letters")
	c.Flags().Int64Var(&before, "before", 0, "show the page that follows, by the `number` that list has shown")
	return c
}

// maxListed is how many dead letters list shows at most.
const maxListed = 10_000

func (a *app) deadShow(db *database) *cobra.Command {
	var listener, consumer string
	var p payloads
	c := &cobra.Command{
		Use:   "show EVENT-ID",
		Short: "Show one dead letter with its failures and its payload",
		Long: `show prints the dead letter of an event: of its queue topic, or of each listener that gave it up. Fields that outbox.yaml
calls sensitive are masked, and so is what outbox.yaml does not describe. Without an outbox.yaml the payload is left out.
--payload shows it as it is.`,
		Example: `  outboxgen dead show 0190a5c2-7b1e-7c00-8000-0123456789ab
  outboxgen dead show 0190a5c2-7b1e-7c00-8000-0123456789ab --listener companion --payload --json`,
		Args: cobra.ExactArgs(1),
	}
	var id uuid.UUID
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		id, err = parseID(args[0])
		return err
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		given := c.Flags().Changed("config")
		return a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
			if err := p.load(a, db, given); err != nil {
				return err
			}
			letters, err := ops.DeadLetters(ctx, admin.Filter{IDs: []uuid.UUID{id}, Listener: listener, Consumer: consumer}, 0, maxListed)
			if err != nil {
				return err
			}
			if len(letters) == 0 {
				return notDead(ctx, ops, id, listener, consumer)
			}
			rows := make([]letterRow, len(letters))
			for i, d := range letters {
				rows[i] = newLetterRow(d)
				p.fill(&rows[i], d)
			}
			p.note(a)
			if a.json {
				return a.printJSON(struct {
					Dead []letterRow `json:"dead"`
				}{rows})
			}
			for i, r := range rows {
				if i > 0 {
					if err := a.printf("\n"); err != nil {
						return err
					}
				}
				if err := a.printLetter(r); err != nil {
					return err
				}
			}
			return nil
		})(c, args)
	}
	c.Flags().StringVar(&listener, "listener", "", "only the dead letter of this `listener`")
	c.Flags().StringVar(&consumer, "consumer", "", "the message that this consumer `group` could not apply")
	p.flags(c)
	return c
}

// notDead returns the error for an event that is not a dead letter of those who were named. It names the consumer groups that
// have the event as a dead letter.
func notDead(ctx context.Context, ops *admin.Admin, id uuid.UUID, listener, consumer string) error {
	if err := checkConsumer(ctx, ops, consumer); err != nil {
		return err
	}
	groups, err := groupsWith(ctx, ops, []uuid.UUID{id})
	switch {
	case err != nil:
		return err
	case len(groups) > 0:
		return usage(fmt.Errorf("event %s is not a dead letter%s, but a consumer has it: --consumer %s", id, ofWhom(listener, consumer), strings.Join(groups, " or --consumer ")))
	case listener+consumer != "":
		return usage(fmt.Errorf("event %s is not a dead letter%s", id, ofWhom(listener, consumer)))
	default:
		return usage(fmt.Errorf("event %s is not a dead letter", id))
	}
}

// printLetter prints a dead letter in lines.
func (a *app) printLetter(r letterRow) error {
	line := func(name string, value any) string { return fmt.Sprintf("%-14s%v\n", name, value) }
	var b strings.Builder
	b.WriteString(line("event", r.ID) + line("topic", fmt.Sprintf("%s, version %d", r.Topic, r.Version)))
	optional := func(name, value string) {
		if value != "" {
			b.WriteString(line(name, printable(value)))
		}
	}
	optional("listener", r.Listener)
	optional("consumer", r.Consumer)
	optional("place", r.Place)
	if r.TenantID != nil {
		b.WriteString(line("tenant", r.TenantID))
	}
	optional("dedupe key", r.DedupeKey)
	optional("partition key", r.PartitionKey)
	if r.Entity != nil {
		optional("entity", fmt.Sprintf("%s %s, version %d", r.Entity.Type, r.Entity.ID, r.Entity.Version))
	}
	if r.ReceivedAt == nil || !r.ReceivedAt.Equal(r.CreatedAt) {
		b.WriteString(line("enqueued", r.CreatedAt.Format(time.RFC3339Nano)))
	}
	if r.ReceivedAt != nil {
		b.WriteString(line("received", r.ReceivedAt.Format(time.RFC3339Nano)))
	}
	b.WriteString(line("died", r.DiedAt.Format(time.RFC3339Nano)))
	attempts := fmt.Sprint(r.Attempts)
	if r.MaxAttempts > 0 {
		attempts = fmt.Sprintf("%d of %d", r.Attempts, r.MaxAttempts)
	}
	b.WriteString(line("attempts", attempts) + line("error", printable(r.Error)))
	for _, f := range r.Failures {
		at := "-"
		if f.At != nil {
			at = f.At.Format(time.RFC3339Nano)
		}
		b.WriteString(line("failure", fmt.Sprintf("attempt %d at %s by %s: %s", f.Attempt, at, cmp.Or(f.Worker, "-"), printable(f.Error))))
	}
	if len(r.Headers) > 0 {
		text, err := json.Marshal(r.Headers)
		if err != nil {
			return err
		}
		b.WriteString(line("headers", string(text)))
	}
	if r.Payload != nil {
		var indented bytes.Buffer
		if err := json.Indent(&indented, r.Payload, "", "  "); err != nil {
			return err
		}
		b.WriteString(line("payload", printableLines(indented.String())))
	}
	return a.printf("%s", b.String())
}

// printable returns text on one line, without characters that control a terminal.
func printable(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
}

// printableLines is printable for text of several lines: it keeps them, and replaces what is not printable.
func printableLines(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

func (a *app) deadExport(db *database) *cobra.Command {
	var f deadFlags
	var p payloads
	c := &cobra.Command{
		Use:   "export [TOPIC]",
		Short: "Write dead letters to stdout as lines of JSON",
		Long: `export writes a line of JSON for each dead letter, newest first, with all its columns. Fields that outbox.yaml calls
sensitive are masked, and so is what outbox.yaml does not describe. Without an outbox.yaml payloads are left out.
--payload writes them as they are. With --json export writes one document instead of lines.`,
		Example: `  outboxgen dead export --payload > dead.jsonl
  outboxgen dead export mini_chat/turn_finalized --since 24h | jq -r .error | sort | uniq -c`,
		Args: topicArgs,
	}
	var filter admin.Filter
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		filter, err = f.filter(args, time.Now())
		return err
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		given := c.Flags().Changed("config")
		return a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
			if err := p.load(a, db, given); err != nil {
				return err
			}
			rows := []letterRow{}
			e := json.NewEncoder(a.Stdout)
			e.SetEscapeHTML(false)
			for before := int64(0); ; {
				letters, err := ops.DeadLetters(ctx, filter, before, exportPage)
				if err != nil {
					return err
				}
				for _, d := range letters {
					r := newLetterRow(d)
					p.fill(&r, d)
					if a.json {
						rows = append(rows, r)
					} else if err := e.Encode(r); err != nil {
						return err
					}
				}
				if len(letters) < exportPage {
					break
				}
				before = letters[len(letters)-1].No
			}
			p.note(a)
			if a.json {
				return a.printJSON(struct {
					Dead []letterRow `json:"dead"`
				}{rows})
			}
			return nil
		})(c, args)
	}
	f.flags(c, false)
	p.flags(c)
	return c
}

// exportPage is how many dead letters export reads in one statement: with payloads of 1 MiB, some 100 MB.
const exportPage = 100

// replayEdited replays one dead letter with the payload in file, after it has checked it against the YAML.
func (a *app) replayEdited(ctx context.Context, ops *admin.Admin, db *database, configGiven bool, filter admin.Filter, file string, act admin.Act) (admin.Report, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return admin.Report{}, usage(fmt.Errorf("--edit: %w", err))
	}
	if !configGiven && !isFile(db.config) {
		return admin.Report{}, usage(errors.New("--edit: the payload cannot be checked without the YAML: name it with --config"))
	}
	m, err := (&source{path: db.config, format: string(diag.Text)}).model(a)
	if err != nil {
		return admin.Report{}, err
	}
	letters, err := ops.DeadLetters(ctx, filter, 0, maxListed)
	if err != nil {
		return admin.Report{}, err
	}
	letter := -1
	for i, d := range letters {
		if d.Listener != filter.Listener {
			continue
		}
		letter = i
		break // the latest
	}
	if letter < 0 {
		if len(letters) > 0 {
			return admin.Report{}, usage(fmt.Errorf("event %s is a dead letter of listeners: name one with --listener", filter.IDs[0]))
		}
		if groups, err := groupsWith(ctx, ops, filter.IDs); err == nil && len(groups) > 0 {
			return admin.Report{}, usage(fmt.Errorf("--edit: only consumer %s has a dead letter of event %s, and what a consumer has received cannot be changed", strings.Join(groups, ", "), filter.IDs[0]))
		}
		return admin.Report{}, notDead(ctx, ops, filter.IDs[0], filter.Listener, "")
	}
	d := letters[letter]
	t, err := a.topicOfVersion(m, db.config, d.Namespace, d.Topic, d.Version)
	if err != nil {
		return admin.Report{}, err
	}
	found := payloadcheck.Check(t, text)
	if len(found) == 0 {
		found = payloadcheck.Changed(t, d.Payload, text)
	}
	if len(found) > 0 {
		lines := make([]string, len(found))
		for i, f := range found {
			lines[i] = f.Error()
		}
		return admin.Report{}, &failure{exitFindings, fmt.Errorf("--edit: %s does not fit %s: %s", file, t.FullName(), strings.Join(lines, "; "))}
	}
	return ops.ReplayEdited(ctx, d.ID, filter.Listener, text, act)
}

// topicOfVersion returns a topic of m as it is in a version: the present one, or one that is frozen in the lock of config.
func (a *app) topicOfVersion(m *model.Model, config, namespace, topic string, version int) (*model.Topic, error) {
	t := topicOf(m, namespace, topic)
	if t == nil {
		return nil, usage(fmt.Errorf("--edit: %s has no topic %s/%s", config, namespace, topic))
	}
	if t.Version == version {
		return t, nil
	}
	src := &source{path: config}
	locked, err := src.lock(a)
	if err != nil {
		return nil, err
	}
	frozen, findings := generator.FrozenTopic(locked, config, t.FullName(), version)
	if err := a.findings(findings, diag.Text); err != nil {
		return nil, err
	}
	if frozen == nil {
		return nil, usage(fmt.Errorf("--edit: the event has version %d of %s, %s has version %d, and no lock next to it has the other", version, t.FullName(), config, t.Version))
	}
	return frozen, nil
}

func topicOf(m *model.Model, namespace, topic string) *model.Topic {
	for _, n := range m.Namespaces {
		for _, t := range n.Topics {
			if n.Name == namespace && t.Name == topic {
				return t
			}
		}
	}
	return nil
}
