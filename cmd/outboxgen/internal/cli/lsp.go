package cli

import (
	"context"
	"errors"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/cmd/outboxgen/internal/lsp"
)

func (a *app) lspCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "lsp",
		Short: "Run the language server for outbox.yaml",
		Long: `lsp speaks the Language Server Protocol on stdin and stdout, with the editor that started it: findings while you
type, completion, hover, definitions and references, rename, quick fixes, an outline, folding and formatting. It ends with
the editor. It reads outbox.lock.yaml and the generated Go code, and writes no file.`,
		Args: cobra.NoArgs,
		RunE: run(func(ctx context.Context, _ []string) error {
			debug.SetGCPercent(400) // each change makes some megabytes of garbage, and answers should be quick
			err := lsp.Serve(ctx, a.Stdin, a.Stdout, lsp.Config{
				Version: currentVersion().Version, Folder: inModule,
				Module: func(dir string) string {
					root, err := moduleRoot(dir)
					if err != nil {
						return ""
					}
					return root
				},
			})
			if errors.Is(err, lsp.ErrNoShutdown) {
				return errReported // the protocol wants 1
			}
			return err
		}),
	}
}
