package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/migrate"
)

func (a *app) doctorCommand() *cobra.Command {
	var db database
	var as []string
	var listenURL string
	var cfg admin.DoctorConfig
	var goneAfter time.Duration
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check the database and the connection to it, and say what to fix",
		Long: `doctor connects as the application would and checks what works: migrations and every difference from them,
LISTEN through this connection, privileges, row level security, replication, settings, clocks,
connections, old transactions and slots, vacuum, transaction ids, late events, topics without a handler,
listeners, and rows that do not fit together. It changes nothing. Use the connection string and the role of the application.

Each finding says what it means and what fixes it. An error is something that does not work, a warning is
something that gets slow or will not work soon, and a notice may be as it is meant to be. The exit code is
1 if there is an error or a warning, and 3 if the database cannot be reached.`,
		Example: `  outboxgen doctor --as producer,dispatcher --pool-size 20
  outboxgen doctor --listen-url "$LISTEN_URL"`,
		Args: cobra.NoArgs,
	}
	checkGone := goneAfterFlag(c, &goneAfter)
	c.PreRunE = func(*cobra.Command, []string) error {
		if err := checkGone(); err != nil {
			return err
		}
		for _, name := range as {
			role := migrate.Role(name)
			if migrate.Grants(role) == nil {
				return fmt.Errorf("--as: %q is not a valid role: use %s", name, strings.Join(words(migrate.Roles()), ", "))
			}
			cfg.Roles = append(cfg.Roles, role)
		}
		if cfg.PoolSize < 0 {
			return fmt.Errorf("--pool-size: %d must not be negative", cfg.PoolSize)
		}
		return nil
	}
	c.RunE = a.administer(&db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		if listenURL != "" {
			pool, err := a.openPool(ctx, listenURL, "--listen-url")
			if err != nil {
				return err
			}
			defer pool.Close()
			cfg.ListenPool = pool
		}
		found, err := ops.WithGoneAfter(goneAfter).Doctor(ctx, cfg)
		if err != nil {
			return err
		}
		return a.printFindings(found)
	})
	db.flags(c)
	c.Flags().StringSliceVar(&as, "as", nil,
		"what the role is to do: `roles` "+strings.Join(words(migrate.Roles()), ", ")+", separated by commas")
	_ = c.RegisterFlagCompletionFunc("as",
		cobra.FixedCompletions(words(migrate.Roles()), cobra.ShellCompDirectiveNoFileComp))
	c.Flags().StringVar(&listenURL, "listen-url", "",
		"`URL` of the connection that listens, if the application gives a ListenPool")
	c.Flags().IntVar(&cfg.PoolSize, "pool-size", 0,
		"`connections` that the application's pool may open, to check that they suffice")
	return c
}

// printFindings prints what doctor has found and returns errReported if it contains an error or a warning.
func (a *app) printFindings(found []admin.Finding) error {
	counts := make(map[admin.Severity]int)
	for i := range found {
		f := &found[i]
		f.Text, f.Means, f.Fix = errtext.Line(f.Text), errtext.Line(f.Means), errtext.Line(f.Fix)
		counts[f.Severity]++
	}
	if err := a.printDiagnosis(found, len(admin.DoctorChecks()), counts); err != nil {
		return err
	}
	if counts[admin.SeverityError]+counts[admin.SeverityWarning] > 0 {
		return errReported
	}
	return nil
}

func (a *app) printDiagnosis(found []admin.Finding, checks int, counts map[admin.Severity]int) error {
	if a.json {
		return a.printJSON(struct {
			Checks   int             `json:"checks"`
			Problems []admin.Finding `json:"problems"`
		}{checks, append([]admin.Finding{}, found...)})
	}
	for _, f := range found {
		_ = a.printf("%s: %s: %s\n  means: %s\n  fix:   %s\n\n", f.Severity, f.Check, f.Text, f.Means, f.Fix)
	}
	var parts []string
	for _, s := range []admin.Severity{admin.SeverityError, admin.SeverityWarning, admin.SeverityNotice} {
		if n := counts[s]; n > 0 {
			parts = append(parts, count(n, string(s)))
		}
	}
	if len(parts) == 0 {
		parts = []string{"no findings"}
	}
	return a.printf("%s, %s\n", count(checks, "check"), strings.Join(parts, ", "))
}
