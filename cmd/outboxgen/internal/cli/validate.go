package cli

import (
	"context"

	"github.com/spf13/cobra"
)

// validReport counts what a file without errors declares, in the --json document.
type validReport struct {
	Namespaces int `json:"namespaces"`
	Topics     int `json:"topics"`
	Listeners  int `json:"listeners"`
	Operations int `json:"operations"`
}

func (a *app) validateCommand() *cobra.Command {
	var src source
	c := &cobra.Command{
		Use:   "validate",
		Short: "Check outbox.yaml and print every finding",
		Long: `validate checks outbox.yaml against every rule, and against outbox.lock.yaml if freeze has written one.
It prints all findings in one run, sorted by position: as text on stderr, or as data on stdout with --format json (one
object per line) or --format github-actions. It exits with 1 if one of them is an error.`,
		Args: cobra.NoArgs,
		RunE: run(func(context.Context, []string) error {
			m, err := src.frozenModel(a)
			if err != nil {
				return err
			}
			topics := 0
			for _, n := range m.Namespaces {
				topics += len(n.Topics)
			}
			if a.json {
				return a.printJSON(validReport{
					Namespaces: len(m.Namespaces), Topics: topics, Listeners: len(m.Listeners), Operations: len(m.Operations),
				})
			}
			more := ""
			if len(m.Listeners) > 0 {
				more += ", " + count(len(m.Listeners), "listener")
			}
			if len(m.Operations) > 0 {
				more += ", " + count(len(m.Operations), "operation")
			}
			a.notef("%s: valid: %s in %s%s", a.shown(src.path), count(topics, "topic"),
				count(len(m.Namespaces), "namespace"), more)
			return nil
		}),
	}
	src.flags(c)
	return c
}
