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

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/internal/tool/describe"
	"github.com/outboxgen/outboxgen/migrate"
)

func (a *app) migrateGet(db *database) *cobra.Command {
	var format, dir string
	var partial migrate.RoleOptions
	var first int64
	var after int
	var down, roles bool
	c := &cobra.Command{
		Use:   "get",
		Short: "Print the migrations for another migration tool",
		Long: `get prints the migrations as files for a migration tool: plain (SQL for psql), goose, tern,
golang-migrate or atlas. With --dir it writes them to a folder and never overwrites a file there. Without
--dir it prints to stdout: plain as SQL to run, the others as a txtar archive. From then on that tool
tracks what is applied: do not use outboxgen migrate up, down, status or validate for this schema. get
needs no database.

After an upgrade of outboxgen, --after prints only the migrations that are new: give the version of the newest
migration that you have already. The first lines of each file name it, as in "outboxgen migration
0004_operations". Unless --first says otherwise, the new files continue its numbers.

With --roles it prints SQL that creates five roles without login and gives each what it needs: producer
(enqueues), dispatcher (runs dispatchers, listeners and the inbox), operator (runs the commands for
operators), reader (reads everything) and viewer (reads everything but payloads). Run it after the
migrations, and again after each upgrade. --namespace adds a dispatcher that sees the events of one
namespace only. --by-tenant adds a producer and a reader of one tenant, that in the setting
outboxgen.tenant_id of the session. Both enable row level security for some tables, with policies that show
the five roles all rows.`,
		Example: `  outboxgen migrate get | psql -v ON_ERROR_STOP=1 --single-transaction
  outboxgen migrate get --format goose --dir db/migrations --first 12
  outboxgen migrate get --format goose --dir db/migrations --after 4 --first 31
  outboxgen migrate get --roles | psql -v ON_ERROR_STOP=1 --single-transaction
  outboxgen migrate get --roles --namespace mini_chat --by-tenant`,
		Args: cobra.NoArgs,
	}
	c.RunE = run(func(context.Context, []string) error {
		schema, err := db.schemaName(a)
		if err != nil {
			return err
		}
		if roles || c.Flags().Changed("role-prefix") {
			return a.printRoles(c, schema, partial)
		}
		for _, of := range []string{"namespace", "by-tenant"} {
			if c.Flags().Changed(of) {
				return usage(fmt.Errorf("--%s: is for roles: add --roles", of))
			}
		}
		if !c.Flags().Changed("first") && first == 1 {
			first = 0 // continues the numbers
		}
		files, err := migrate.ExportAfter(schema, migrate.Format(format), first, after)
		if err != nil {
			return usage(err)
		}
		if len(files) == 0 {
			a.notef("nothing is new after migration %d", after)
		}
		if down && (migrate.Format(format) != migrate.Plain || dir != "" || a.json) {
			return usage(errors.New("--down: prints plain SQL on stdout only: remove --format, --dir and --json"))
		}
		switch {
		case dir != "":
			if migrate.Format(format) == migrate.Atlas && after > 0 && len(files) > 0 {
				a.notef("run atlas migrate hash: atlas.sum covers all files of %s", dir)
			}
			return a.writeFiles(dir, files)
		case a.json:
			return a.printFiles(fileRows(files))
		case migrate.Format(format) == migrate.Plain:
			return a.printSQL(files, down)
		}
		return a.printArchive(files)
	})
	c.Flags().StringVar(&format, "format", string(migrate.Plain), "`tool`: "+strings.Join(words(migrate.Formats()), ", "))
	_ = c.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions(words(migrate.Formats()), cobra.ShellCompDirectiveNoFileComp))
	c.Flags().StringVar(&dir, "dir", "", "`folder` to write the files to, instead of stdout")
	_ = c.MarkFlagDirname("dir") // fails only for an undefined flag
	c.Flags().Int64Var(&first, "first", 1, "`number` of the first file (with --after: by default one above that version)")
	c.Flags().IntVar(&after, "after", 0, "only the migrations after this `version`")
	c.Flags().BoolVar(&down, "down", false, "print the SQL that removes the tables")
	c.Flags().BoolVar(&roles, "roles", false, "print the SQL that creates roles and grants them their privileges")
	c.Flags().StringVar(&partial.Prefix, "role-prefix", "",
		"`prefix` of the roles of --roles (default: the schema and an underscore)")
	c.Flags().StringSliceVar(&partial.Namespaces, "namespace", nil,
		"with --roles: a role that runs the dispatcher of this `namespace` only; can be repeated")
	c.Flags().BoolVar(&partial.ByTenant, "by-tenant", false,
		"with --roles: roles that enqueue for and read one tenant, by row level security")
	return c
}

// printRoles prints the SQL of --roles.
func (a *app) printRoles(c *cobra.Command, schema string, o migrate.RoleOptions) error {
	for _, other := range []string{"format", "dir", "first", "after", "down"} {
		if c.Flags().Changed(other) {
			return usage(fmt.Errorf("--roles: prints SQL on stdout only: remove --%s", other))
		}
	}
	text, err := migrate.RolesSQL(schema, o)
	switch {
	case err != nil:
		return usage(fmt.Errorf("--roles: %w", err))
	case a.json:
		return a.printFiles([]fileRow{{"roles.sql", text}})
	}
	return a.printf("%s", text)
}

// fileRow is a file in the --json document.
type fileRow struct {
	File    string `json:"file"`
	Content string `json:"content"`
}

func fileRows[F migrate.File | describe.File](files []F) []fileRow {
	rows := []fileRow{}
	for _, f := range files {
		file := migrate.File(f)
		rows = append(rows, fileRow{File: file.Name, Content: string(file.Content)})
	}
	return rows
}

// printFiles prints the --json document of files that are not written.
func (a *app) printFiles(rows []fileRow) error {
	return a.printJSON(struct {
		Files []fileRow `json:"files"`
	}{rows})
}

// printSQL prints the up files in their order, or the down files in reverse order.
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
func (a *app) printArchive(files []migrate.File) (err error) {
	for _, f := range files {
		err = a.printf("-- %s --\n%s", f.Name, f.Content)
	}
	return err
}

// exportReport is the --json document of --dir.
type exportReport struct {
	Files []string `json:"files"` // the files that were written
}

// writeFiles writes the files that are missing in dir. It writes none if dir has one of them with different content.
func (a *app) writeFiles(dir string, files []migrate.File) (err error) {
	made, err := makeFolder(dir)
	if err != nil {
		return fmt.Errorf("make folder %s: %w", dir, pathCause(err))
	}
	defer func() { made.removeIf(err != nil) }()
	var missing []generator.File
	report := exportReport{Files: []string{}}
	for _, f := range files {
		path := filepath.Join(dir, f.Name)
		have, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, generator.File{Name: f.Name, Content: f.Content})
			report.Files = append(report.Files, filepath.ToSlash(path))
		case err != nil:
			return usage(fmt.Errorf("read %s: %w", path, pathCause(err)))
		case strings.ReplaceAll(string(have), "\r\n", "\n") != string(f.Content):
			return fmt.Errorf("write %s: file exists with different content", path)
		}
	}
	if err := generator.WriteNew(dir, missing); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(report)
	}
	return a.printCreated(report.Files)
}

// printCreated lists files that were created.
func (a *app) printCreated(paths []string) (err error) {
	for _, path := range paths {
		err = a.printf("create %s\n", path)
	}
	return err
}

// folders are the folders that makeFolder has created, the outermost first.
type folders []string

// makeFolder creates dir and its missing parents.
func makeFolder(dir string) (folders, error) {
	made := missingFolders(dir, os.Lstat)
	err := os.MkdirAll(dir, 0o755)
	made.removeIf(err != nil)
	return made, err
}

// missingFolders returns dir and its parents, as far as they do not exist. A drive of Windows may not exist either.
func missingFolders(dir string, stat func(string) (fs.FileInfo, error)) (missing folders) {
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		if _, err := stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return missing
		}
		if dir == filepath.Dir(dir) {
			return missing
		}
		missing = append(folders{dir}, missing...)
	}
}

// removeIf removes those of the folders that are empty, if the command has failed.
func (f folders) removeIf(failed bool) {
	for i := len(f) - 1; i >= 0 && failed; i-- {
		_ = os.Remove(f[i]) // fails for a folder that is not empty, which stays
	}
}

// pathCause strips the operation and the path from err, because the message names them already.
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
