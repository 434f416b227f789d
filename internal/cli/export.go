package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/migrate"
)

func (a *app) migrateGet(db *database) *cobra.Command {
	var format, dir string
	var first int64
	var down bool
	c := &cobra.Command{
		Use:   "get",
		Short: "Print the migrations for another migration tool",
		Long: `get writes the migrations as files of a migration tool: plain (SQL for psql), goose, tern, golang-migrate
or atlas. With --dir they go to a folder, in which no file is overwritten; without it to stdout: plain as
SQL to run, the others as a txtar archive. That tool then keeps the books, and outboxgen migrate up, down,
status and validate are not for this schema any more. No database is needed.`,
		Example: `  outboxgen migrate get | psql -v ON_ERROR_STOP=1 --single-transaction
  outboxgen migrate get --format goose --dir db/migrations --first 12`,
		Args: cobra.NoArgs,
	}
	c.RunE = run(func(context.Context, []string) error {
		schema, err := db.schemaName(a, c.Flags().Changed("config"))
		if err != nil {
			return err
		}
		files, err := migrate.Export(schema, migrate.Format(format), first)
		if err != nil {
			return usage(err)
		}
		if down && (migrate.Format(format) != migrate.Plain || dir != "" || a.json) {
			return usage(errors.New("--down: only for plain SQL on stdout: the other formats hold both ways"))
		}
		switch {
		case dir != "":
			return a.writeFiles(dir, files)
		case a.json:
			return a.printFiles(files)
		case migrate.Format(format) == migrate.Plain:
			return a.printSQL(files, down)
		}
		return a.printArchive(files)
	})
	c.Flags().StringVar(&format, "format", string(migrate.Plain), "`tool`: "+strings.Join(words(migrate.Formats()), ", "))
	_ = c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(words(migrate.Formats()), cobra.ShellCompDirectiveNoFileComp))
	c.Flags().StringVar(&dir, "dir", "", "`folder` to write the files to, instead of stdout")
	_ = c.MarkFlagDirname("dir") // fails only for a flag that is not there
	c.Flags().Int64Var(&first, "first", 1, "`number` of the first file")
	c.Flags().BoolVar(&down, "down", false, "print the SQL that removes the tables")
	return c
}

// exportRow is an exported file as --json shows it.
type exportRow struct {
	File    string `json:"file"`
	Content string `json:"content"`
}

func (a *app) printFiles(files []migrate.File) error {
	rows := []exportRow{}
	for _, f := range files {
		rows = append(rows, exportRow{File: f.Name, Content: string(f.Content)})
	}
	return a.printJSON(rows)
}

// printSQL prints the up files in their order, or the down files in the opposite one.
func (a *app) printSQL(files []migrate.File, down bool) error {
	suffix, text := ".up.sql", ""
	if down {
		suffix = ".down.sql"
	}
	for _, f := range files {
		switch {
		case !strings.HasSuffix(f.Name, suffix):
		case down:
			text = string(f.Content) + text
		default:
			text += string(f.Content)
		}
	}
	return a.printf("%s", text)
}

// printArchive prints the files as txtar, whose lines "-- name --" are comments in SQL.
func (a *app) printArchive(files []migrate.File) error {
	for _, f := range files {
		if err := a.printf("-- %s --\n%s", f.Name, f.Content); err != nil {
			return err
		}
	}
	return nil
}

// writeFiles writes all files to dir, or none if one of them is there with another content.
func (a *app) writeFiles(dir string, files []migrate.File) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make folder %s: %w", dir, pathCause(err))
	}
	var missing []migrate.File
	for _, f := range files {
		path := filepath.Join(dir, f.Name)
		have, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, f)
		case err != nil:
			return usage(fmt.Errorf("read %s: %w", path, pathCause(err)))
		case string(have) != string(f.Content):
			return fmt.Errorf("write %s: it is there with another content", path)
		}
	}
	for _, f := range missing {
		path := filepath.Join(dir, f.Name)
		if err := createFile(path, f.Content); err != nil {
			return err
		}
		if err := a.printf("create %s\n", filepath.ToSlash(path)); err != nil {
			return err
		}
	}
	return nil
}

// createFile writes a file that must not be there.
func createFile(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, pathCause(err))
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, pathCause(err))
	}
	return nil
}

// pathCause strips the operation and path that a message names already.
func pathCause(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}
