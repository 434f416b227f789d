package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
)

// pauseFlags are the flags of pause and resume.
type pauseFlags struct {
	db               database
	tenant, listener string
	until            string
	person           personFlags
	scope            admin.Scope
	act              admin.Act
}

func (a *app) pauseCommand() *cobra.Command {
	var f pauseFlags
	c := &cobra.Command{
		Use:   "pause [NAMESPACE[/TOPIC]]",
		Short: "Stop the delivery of a namespace, topic, tenant or listener for a while",
		Long: `pause stops the delivery of events without stopping processes. Running processes stop claiming within one
poll interval (1 s by default), and processes that start later respect the pause too. Handlers that are
running finish. Events that were claimed and not started are released, and no attempt is charged. New events
can be enqueued meanwhile: they wait until resume, or until the time of --until.

A namespace, a topic or a tenant means events of queue topics. A listener reads its log topics in order, so
it is paused as a whole with --listener. Pausing again replaces --until and --reason.`,
		Example: `  outboxgen pause mini_chat/turn_finalized --reason "billing is down"
  outboxgen pause mini_chat --until 2h
  outboxgen pause --tenant 6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab --until 2026-05-01T12:00:00Z
  outboxgen pause mini_chat --tenant 6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab
  outboxgen pause --listener companion`,
		Args: cobra.MaximumNArgs(1),
	}
	f.add(c, "pause")
	c.Flags().StringVar(&f.until, "until", "",
		"`when` the pause ends by itself: a duration like 2h, or a time like 2026-05-01T12:00:00Z (default: never)")
	c.PreRunE = func(_ *cobra.Command, args []string) error { return f.parse(args) }
	c.RunE = a.administer(&f.db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		if err := ops.Pause(ctx, f.scope, f.act); err != nil {
			return err
		}
		row := rowOfScope(f.scope)
		row.Done, row.Paused = true, true
		text := "paused " + f.scope.String()
		if !f.act.Until.IsZero() {
			row.Until = f.act.Until.UTC().Format(time.RFC3339)
			text += " until " + row.Until
		}
		if a.json {
			return a.printJSON(row)
		}
		return a.printf("%s\n", text)
	})
	return c
}

func (a *app) resumeCommand() *cobra.Command {
	var f pauseFlags
	c := &cobra.Command{
		Use:   "resume [NAMESPACE[/TOPIC]]",
		Short: "End a pause",
		Long: `resume ends the pause of exactly the namespace, topic, tenant or listener that was paused. Sleeping processes
are woken, the others notice it within one poll interval. If other pauses still cover it, resume names them.
Resuming what is not paused changes nothing and is not an error.`,
		Example: `  outboxgen resume mini_chat/turn_finalized
  outboxgen resume --tenant 6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab
  outboxgen resume --listener companion`,
		Args: cobra.MaximumNArgs(1),
	}
	f.add(c, "resume")
	c.PreRunE = func(_ *cobra.Command, args []string) error { return f.parse(args) }
	c.RunE = a.administer(&f.db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		r, err := ops.Resume(ctx, f.scope, f.act)
		if err != nil {
			return err
		}
		row := rowOfScope(f.scope)
		row.Done, row.PausedBy = r.Resumed, []string{}
		for _, p := range r.Paused {
			row.Paused = true
			row.PausedBy = append(row.PausedBy, p.Scope.String())
			a.notef("%s still waits: %s is paused by %s", f.scope, p.Scope, p.Who)
		}
		if a.json {
			return a.printJSON(row)
		}
		if !r.Resumed {
			return a.printf("%s is not paused itself: nothing to resume\n", f.scope)
		}
		return a.printf("resumed %s\n", f.scope)
	})
	return c
}

func (f *pauseFlags) add(c *cobra.Command, verb string) {
	f.db.flags(c)
	c.Flags().StringVar(&f.tenant, "tenant", "",
		verb+" the events of the tenant with this `ID`: all of them, or those of the namespace or topic")
	c.Flags().StringVar(&f.listener, "listener", "", verb+" the listener of this `name`")
	f.person.flags(c)
}

// parse fills in the scope and the act.
func (f *pauseFlags) parse(args []string) (err error) {
	if len(args) > 0 {
		var slash bool
		f.scope.Namespace, f.scope.Topic, slash = strings.Cut(args[0], "/")
		if f.scope.Namespace == "" || slash && f.scope.Topic == "" {
			return fmt.Errorf("%q is not a valid namespace or topic: use a name like mini_chat or mini_chat/turn_finalized",
				args[0])
		}
	}
	if f.tenant != "" {
		id, err := uuid.Parse(f.tenant)
		if err != nil || id == uuid.Nil {
			return fmt.Errorf("--tenant: %q is not a valid tenant: use its UUID", f.tenant)
		}
		f.scope.TenantID = uuid.NullUUID{UUID: id, Valid: true}
	}
	switch f.scope.Listener = f.listener; {
	case f.listener != "" && (len(args) > 0 || f.tenant != ""):
		return errors.New(
			"--listener: a listener is paused as a whole: give neither a namespace, a topic nor a tenant with it")
	case f.scope == admin.Scope{}:
		return errors.New("nothing is named: give a namespace, a topic, --tenant or --listener")
	}
	f.act = admin.Act{Who: cmp.Or(f.person.who, defaultWho()), Why: f.person.why}
	if f.until != "" {
		f.act.Until, err = parseUntil(f.until, time.Now())
	}
	return err
}

// parseUntil returns the time that text means: a duration from now, or a time.
func parseUntil(text string, now time.Time) (time.Time, error) {
	until, err := time.Parse(time.RFC3339, text)
	if d, notDuration := time.ParseDuration(text); notDuration == nil {
		until, err = now.Add(d), nil
	}
	switch {
	case err != nil:
		return time.Time{}, fmt.Errorf(
			"--until: %q is not a valid time: use a duration like 2h or a time like 2026-05-01T12:00:00Z", text)
	case !until.After(now):
		return time.Time{}, fmt.Errorf("--until: %s has passed", text)
	}
	return until, nil
}

// defaultWho is the user of the operating system at this host.
func defaultWho() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return strings.ToValidUTF8(name+"@"+host, "?")
}

// scopeRow is what pause or resume did, in the --json document.
type scopeRow struct {
	Namespace string `json:"namespace,omitempty"`
	Topic     string `json:"topic,omitempty"`
	TenantID  string `json:"tenant_id,omitempty"`
	Listener  string `json:"listener,omitempty"`
	Done      bool   `json:"done"`   // something was changed
	Paused    bool   `json:"paused"` // it is paused now, by itself or by another pause
	Until     string `json:"until,omitempty"`
	// PausedBy are the other pauses that still cover it after resume.
	PausedBy []string `json:"paused_by,omitempty"`
}

func rowOfScope(s admin.Scope) scopeRow {
	row := scopeRow{Namespace: s.Namespace, Topic: s.Topic, Listener: s.Listener}
	if s.TenantID.Valid {
		row.TenantID = s.TenantID.UUID.String()
	}
	return row
}
