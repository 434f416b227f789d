package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator/spec"
)

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of outbox.yaml",
		Long: `schema prints the JSON Schema (2020-12) of outbox.yaml. An editor with a YAML language server uses it to
complete and check the file. The first line of the YAML says where the schema is:

  # yaml-language-server: $schema=./outbox.schema.json`,
		Example: "  outboxgen schema > outbox.schema.json",
		Args:    cobra.NoArgs,
		RunE: run(func(context.Context, []string) error {
			text, err := spec.JSONSchema()
			if err != nil {
				return err
			}
			return a.printf("%s", text)
		}),
	}
}
