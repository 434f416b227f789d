package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
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

// payloads says how a command shows payloads: as they are, or masked by the YAML.
type payloads struct {
	plain  bool
	masker *yamlmask.Masker
	hidden int // payloads that were left out because no YAML describes them
}

func (p *payloads) flags(c *cobra.Command) {
	c.Flags().BoolVar(&p.plain, "payload", false,
		"show payloads as they are, with the fields that outbox.yaml calls sensitive")
}

// load reads the YAML that says what is masked, if there is one.
func (p *payloads) load(a *app, db *database) error {
	if p.plain || !db.hasConfig() {
		return nil
	}
	m, err := db.model(a)
	if err == nil {
		p.masker = yamlmask.New(m)
	}
	return err
}

// hide masks the payload of d, or removes it.
func (p *payloads) hide(d *admin.DeadLetter) {
	if p.plain {
		return
	}
	masked, ok := p.masker.Payload(d.Name(), d.Payload)
	if d.Payload = masked; !ok {
		d.Payload = nil
		p.hidden++
	}
}

// note says why payloads are missing.
func (p *payloads) note(a *app) {
	if p.hidden > 0 {
		a.notef(
			"%s left out, because no outbox.yaml says what is sensitive there: use --config, or --payload to show everything",
			count(p.hidden, "payload"))
	}
}

// deadDocument is a --json document with dead letters.
type deadDocument struct {
	Dead []admin.DeadLetter `json:"dead"`
}

func (a *app) deadList(db *database) *cobra.Command {
	var f deadFlags
	var limit int
	var before int64
	c := &cobra.Command{
		Use:   "list [TOPIC]",
		Short: "List dead letters, newest first",
		Long: `list shows dead letters without their payloads, those that died last first. LISTENER is the listener that
gave the event up; it is - for a queue topic. With --consumer they are those of a consumer group, the messages that
arrived last first; PLACE is where their broker had them. If there are more than --limit, list says how to get the next
page.`,
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
		table := [][]any{{"DIED", "TOPIC", "LISTENER", "EVENT", "TENANT", "ATTEMPTS", "ERROR"}}
		for i := range letters {
			d := &letters[i]
			d.Payload = nil
			table = append(table, []any{
				second(d.DiedAt), d.Name(), dash(d.Listener + d.Place), d.ID, uuidText(d.TenantID), d.Attempt,
				dash(errtext.Short(d.Error)),
			})
		}
		if filter.Consumer != "" {
			table[0][2] = "PLACE"
		}
		if err := a.printList(struct {
			deadDocument
			Next int64 `json:"next,omitempty"` // --before of the next page
		}{deadDocument{letters}, next}, table, "no dead letters"); err != nil {
			return err
		}
		if next > 0 && !a.json {
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
		Long: `show prints the dead letter of an event: of its queue topic, or of each listener that gave it up. Fields
that outbox.yaml calls sensitive are masked, and so is what outbox.yaml does not describe. Without an outbox.yaml the
payload is left out. --payload shows it as it is.`,
		Example: `  outboxgen dead show 0190a5c2-7b1e-7c00-8000-0123456789ab
  outboxgen dead show 0190a5c2-7b1e-7c00-8000-0123456789ab --listener companion --payload --json`,
		Args: cobra.ExactArgs(1),
	}
	var id uuid.UUID
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		id, err = parseID(args[0])
		return err
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		if err := p.load(a, db); err != nil {
			return err
		}
		filter := admin.Filter{IDs: []uuid.UUID{id}, Listener: listener, Consumer: consumer}
		letters, err := ops.DeadLetters(ctx, filter, 0, maxListed)
		if err != nil {
			return err
		}
		if len(letters) == 0 {
			return notDead(ctx, ops, id, listener, consumer)
		}
		for i := range letters {
			p.hide(&letters[i])
		}
		p.note(a)
		if a.json {
			return a.printJSON(deadDocument{letters})
		}
		for i, d := range letters {
			if i > 0 {
				_ = a.printf("\n")
			}
			err = a.printLetter(d)
		}
		return err
	})
	c.Flags().StringVar(&listener, "listener", "", "only the dead letter of this `listener`")
	c.Flags().StringVar(&consumer, "consumer", "", "the message that this consumer `group` could not apply")
	p.flags(c)
	return c
}

// notDead returns the error for an event that is not a dead letter of those who were named. It names the consumer
// groups that have the event as a dead letter.
func notDead(ctx context.Context, ops *admin.Admin, id uuid.UUID, listener, consumer string) error {
	if err := checkConsumer(ctx, ops, consumer); err != nil {
		return err
	}
	groups, err := groupsWith(ctx, ops, []uuid.UUID{id})
	switch {
	case err != nil:
		return err
	case len(groups) > 0:
		return usage(fmt.Errorf("event %s is not a dead letter%s, but a consumer has it: --consumer %s", id,
			ofWhom(listener, consumer), strings.Join(groups, " or --consumer ")))
	case listener+consumer != "":
		return usage(fmt.Errorf("event %s is not a dead letter%s", id, ofWhom(listener, consumer)))
	default:
		return usage(fmt.Errorf("event %s is not a dead letter", id))
	}
}

// printLetter prints a dead letter in lines.
func (a *app) printLetter(d admin.DeadLetter) error {
	line := func(name string, value any) string { return fmt.Sprintf("%-14s%v\n", name, value) }
	var b strings.Builder
	b.WriteString(line("event", d.ID) + line("topic", fmt.Sprintf("%s, version %d", d.Name(), d.Version)))
	optional := func(name, value string) {
		if value != "" {
			b.WriteString(line(name, errtext.Line(value)))
		}
	}
	at := func(name string, t time.Time) {
		if !t.IsZero() {
			b.WriteString(line(name, t.Format(time.RFC3339Nano)))
		}
	}
	optional("listener", d.Listener)
	optional("consumer", d.Consumer)
	optional("place", d.Place)
	if d.TenantID.Valid {
		b.WriteString(line("tenant", d.TenantID.UUID))
	}
	optional("dedupe key", d.DedupeKey)
	optional("partition key", d.PartitionKey)
	if d.Entity.Type != "" {
		optional("entity", entityText(d.Entity))
	}
	if !d.ReceivedAt.Equal(d.CreatedAt) {
		at("enqueued", d.CreatedAt)
	}
	at("received", d.ReceivedAt)
	at("died", d.DiedAt)
	attempts := fmt.Sprint(d.Attempt)
	if d.MaxAttempts > 0 {
		attempts = fmt.Sprintf("%d of %d", d.Attempt, d.MaxAttempts)
	}
	b.WriteString(line("attempts", attempts) + line("error", errtext.Line(d.Error)))
	for _, f := range d.Failures {
		at, by := "-", "-"
		if !f.At.IsZero() {
			at = f.At.Format(time.RFC3339Nano)
		}
		if f.Worker != uuid.Nil {
			by = f.Worker.String()
		}
		b.WriteString(line("failure", fmt.Sprintf("attempt %d at %s by %s: %s", f.Attempt, at, by, errtext.Line(f.Error))))
	}
	if len(d.Headers) > 0 {
		text, err := json.Marshal(d.Headers)
		if err != nil {
			return err
		}
		b.WriteString(line("headers", string(text)))
	}
	if d.Payload != nil {
		var indented bytes.Buffer
		if err := json.Indent(&indented, d.Payload, "", "  "); err != nil {
			return err
		}
		b.WriteString(line("payload", printableLines(indented.String())))
	}
	return a.printf("%s", b.String())
}

// printableLines is errtext.Line for text of several lines: it keeps them, and replaces what is not printable.
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
		Long: `export writes a line of JSON for each dead letter, newest first, with all its columns. Fields that
outbox.yaml calls sensitive are masked, and so is what outbox.yaml does not describe. Without an outbox.yaml payloads
are left out. --payload writes them as they are. With --json export writes one document instead of lines.`,
		Example: `  outboxgen dead export --payload > dead.jsonl
  outboxgen dead export mini_chat/turn_finalized --since 24h | jq -r .error | sort | uniq -c`,
		Args: topicArgs,
	}
	var filter admin.Filter
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		filter, err = f.filter(args, time.Now())
		return err
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		if err := p.load(a, db); err != nil {
			return err
		}
		all := []admin.DeadLetter{}
		e := json.NewEncoder(a)
		e.SetEscapeHTML(false)
		for before := int64(0); ; {
			letters, err := ops.DeadLetters(ctx, filter, before, exportPage)
			if err != nil {
				return err
			}
			for _, d := range letters {
				p.hide(&d)
				if a.json {
					all = append(all, d)
				} else if err := e.Encode(d); err != nil {
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
			return a.printJSON(deadDocument{all})
		}
		return nil
	})
	f.flags(c, false)
	p.flags(c)
	return c
}

// exportPage is how many dead letters export reads in one statement: with payloads of 1 MiB, some 100 MB.
const exportPage = 100

// replayEdited replays one dead letter with the payload in file, after it has checked it against the YAML.
func (a *app) replayEdited(
	ctx context.Context, ops *admin.Admin, db *database, filter admin.Filter, file string, act admin.Act,
) (admin.Report, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return admin.Report{}, usage(fmt.Errorf("--edit: %w", err))
	}
	if !db.hasConfig() {
		return admin.Report{}, usage(errors.New(
			"--edit: the payload cannot be checked without the YAML: name it with --config"))
	}
	m, err := db.model(a)
	if err != nil {
		return admin.Report{}, err
	}
	letters, err := ops.DeadLetters(ctx, filter, 0, maxListed)
	if err != nil {
		return admin.Report{}, err
	}
	latest := slices.IndexFunc(letters, func(d admin.DeadLetter) bool { return d.Listener == filter.Listener })
	if latest < 0 {
		if len(letters) > 0 {
			return admin.Report{}, usage(fmt.Errorf("event %s is a dead letter of listeners: name one with --listener",
				filter.IDs[0]))
		}
		if groups, err := groupsWith(ctx, ops, filter.IDs); err == nil && len(groups) > 0 {
			return admin.Report{}, usage(fmt.Errorf(
				"--edit: only consumer %s has a dead letter of event %s, and what a consumer has received cannot be changed",
				strings.Join(groups, ", "), filter.IDs[0]))
		}
		return admin.Report{}, notDead(ctx, ops, filter.IDs[0], filter.Listener, "")
	}
	d := letters[latest]
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
		return admin.Report{}, &failure{
			exitFindings, fmt.Errorf("--edit: %s does not fit %s: %s", file, t.FullName(), strings.Join(lines, "; ")),
		}
	}
	return ops.ReplayEdited(ctx, d.ID, filter.Listener, text, act)
}

// topicOfVersion returns a topic of m as it is in a version: the present one, or one that is frozen in the lock of
// config.
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
		return nil, usage(fmt.Errorf(
			"--edit: the event has version %d of %s, %s has version %d, and no lock next to it has the other", version,
			t.FullName(), config, t.Version))
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
