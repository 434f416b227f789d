package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
)

// personFlags say who changes something, and why.
type personFlags struct{ who, why string }

func (f *personFlags) flags(c *cobra.Command) {
	c.Flags().StringVar(&f.why, "reason", "", "why it is done: a `text` for the audit")
	c.Flags().StringVar(&f.who, "who", "", "`name` for the audit (default: user@host of the operating system)")
}

// as returns an Admin that acts for the person.
func (f *personFlags) as(ops *admin.Admin) *admin.Admin {
	return ops.As(cmp.Or(f.who, defaultWho()), f.why)
}

func (a *app) auditCommand() *cobra.Command {
	var db database
	var f admin.AuditFilter
	var since, until string
	var page admin.Page
	c := &cobra.Command{
		Use:   "audit",
		Short: "List what operators did: who, when, what and why",
		Long: `audit lists the acts of operators, the latest first: replay and discard of dead letters, pause and resume,
limit and limit-reset, skip, rewind, detach and rebase of listeners, enqueue, forget, forget-process, prune, if
it has deleted anything, and reseal. It makes no difference whether they were done with this command, with the
dashboard or with package admin. Nothing
deletes entries.

WHO     as the operator said (--who), otherwise the user of the database
EVENTS  how many events were changed; a rewind counts those that its listener has before it then

If there are more entries, the command for the next page is printed on stderr.`,
		Example: `  outboxgen audit
  outboxgen audit --action discard --since 2026-05-01
  outboxgen audit --who ann@example.com --limit 200 --json`,
		Args: cobra.NoArgs,
	}
	c.PreRunE = func(*cobra.Command, []string) (err error) {
		if page.Limit < 1 || page.Limit > 1000 {
			return fmt.Errorf("--limit: %d is not a number from 1 to 1000", page.Limit)
		}
		now := time.Now()
		if f.Since, err = flagMoment("--since", since, now); err != nil {
			return err
		}
		f.Until, err = flagMoment("--until", until, now)
		return err
	}
	c.RunE = a.administer(&db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		p, err := ops.Audit(ctx, f, page)
		if err != nil {
			return asUsage(err)
		}
		table := [][]any{{"AT", "WHO", "ACTION", "EVENTS", "SCOPE", "WHY"}}
		for _, e := range p.Entries {
			table = append(table, []any{
				second(e.At), brief(e.Who), brief(e.Action), commas(e.Events), brief(e.Scope), dash(brief(e.Why)),
			})
		}
		p.Entries = append([]admin.AuditEntry{}, p.Entries...) // nil would be null
		err = a.printList(p, table, "no act is recorded")
		if p.Next != "" && !a.json {
			a.notef("more: %s", a.nextCommand(p.Next))
		}
		return err
	})
	db.flags(c)
	c.Flags().StringVar(&f.Who, "who", "", "only acts of this `name`")
	c.Flags().StringVar(&f.Action, "action", "",
		"only this `act`: replay, discard, pause, resume, limit, limit-reset, skip, rewind, detach, rebase, prune, enqueue, forget, "+
			"forget-process or reseal")
	c.Flags().StringVar(&since, "since", "",
		"only acts since this `time`, like 2026-05-01T12:00:00Z or 2026-05-01 (UTC), or an age like 90m")
	c.Flags().StringVar(&until, "until", "", "only acts before this `time` or age")
	c.Flags().IntVar(&page.Limit, "limit", 50, "`number` of entries per page, up to 1000")
	c.Flags().StringVar(&page.After, "after", "",
		"continue with the page behind this `mark`, which the page before has printed")
	return c
}
