package migrate

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/internal/postgres/pgname"
)

// Format is a migration tool whose files Export can write.
type Format string

// The formats of Export.
const (
	// Plain is SQL for psql, in pairs of up and down files.
	Plain Format = "plain"
	// Goose is for pressly/goose: one annotated file per migration.
	Goose Format = "goose"
	// Tern is for jackc/tern: one file with a dividing line per migration.
	Tern Format = "tern"
	// GolangMigrate is for golang-migrate/migrate: pairs of up and down files.
	GolangMigrate Format = "golang-migrate"
	// Atlas is for ariga/atlas: up files, because atlas plans the reverse by itself, and their atlas.sum.
	Atlas Format = "atlas"
)

// Formats returns all formats.
func Formats() []Format { return []Format{Plain, Goose, Tern, GolangMigrate, Atlas} }

// File is one exported file.
type File struct {
	// Name is the file name without a folder.
	Name    string
	Content []byte
}

// Export returns the migrations for a schema as files of another migration tool, by version. The first migration
// creates the schema if it does not exist. The files are numbered from first, or from 1 if first is zero, so that they
// can join the history of an application. For golang-migrate and atlas, first may be a timestamp. From then on that
// tool tracks what is applied: do not use Up, Down, Status and Validate for that schema.
//
// Each file says which migration it is, in a comment such as "outboxgen migration 0004_operations". After an upgrade of
// this module, ExportAfter returns those that are new.
func Export(schema string, format Format, first int64) ([]File, error) {
	return released().export(schema, format, first, 0)
}

// ExportAfter is Export for the migrations after version, the newest that was exported before. With first 0, files are
// numbered by version, as by Export. There are no files if nothing is new. For atlas there is no atlas.sum, which
// covers the whole folder: run atlas migrate hash. A version that this module does not have is an error: its tables may
// be newer.
func ExportAfter(schema string, format Format, first int64, version int) ([]File, error) {
	return released().export(schema, format, first, version)
}

func (m migrations) export(schema string, format Format, first int64, after int) ([]File, error) {
	if err := pgname.Check(schema); err != nil {
		return nil, err
	}
	switch {
	case first < 0:
		return nil, fmt.Errorf("export migrations: first number %d: must not be negative", first)
	case after < 0:
		return nil, fmt.Errorf("export migrations: after version %d: must not be negative", after)
	case after > len(m):
		return nil, fmt.Errorf("export migrations: after version %d: this version of outboxgen has only versions 1 to %d: "+
			"give the newest that you have exported, which is in the first lines of its file, or use the outboxgen that it "+
			"came from", after, len(m))
	case first == 0:
		first = int64(after) + 1
	}
	if !slices.Contains(Formats(), format) {
		return nil, fmt.Errorf("export migrations: unknown format %q: use one of %s", format, formatNames())
	}
	var files []File
	for i, mig := range m[after:] {
		number, name := first+int64(i), "outbox_"+mig.Name
		up, down := section(mig.up(schema)), section(mig.down(schema))
		if mig.Version == 1 {
			up = fill(createSchema, schema) + "\n\n" + up
		}
		up = fmt.Sprintf("-- outboxgen migration %04d_%s\n\n", mig.Version, mig.Name) + up
		switch format {
		case Plain:
			files = append(files, pair("%04d_%s", number, name, up, down)...)
		case GolangMigrate:
			files = append(files, pair("%06d_%s", number, name, up, down)...)
		case Goose:
			files = append(files, file(fmt.Sprintf("%05d_%s.sql", number, name),
				"-- +goose Up\n"+gooseBody(up)+"\n-- +goose Down\n"+gooseBody(down)))
		case Tern:
			files = append(files, file(fmt.Sprintf("%03d_%s.sql", number, name),
				up+"\n---- create above / drop below ----\n\n"+down))
		case Atlas:
			files = append(files, file(fmt.Sprintf("%04d_%s.sql", number, name), up))
		}
	}
	if format == Atlas && after == 0 {
		files = append(files, file("atlas.sum", atlasSum(files)))
	}
	return files, nil
}

func file(name, content string) File { return File{Name: name, Content: []byte(content)} }

// pair renders the two files that plain SQL and golang-migrate use.
func pair(layout string, number int64, name, up, down string) []File {
	base := fmt.Sprintf(layout, number, name)
	return []File{file(base+".up.sql", up), file(base+".down.sql", down)}
}

// section returns sql with exactly one newline at its end.
func section(sql string) string { return strings.TrimSpace(sql) + "\n" }

// gooseBody marks sql so that goose does not split a function body at its semicolons.
func gooseBody(sql string) string {
	if !strings.Contains(sql, "$$") {
		return sql
	}
	return "-- +goose StatementBegin\n" + sql + "-- +goose StatementEnd\n"
}

// atlasSum renders the integrity file of atlas (ariga.io/atlas, sql/migrate, HashFile). For each file it has a running
// hash over the names and contents so far; its first line is a hash over those lines.
func atlasSum(files []File) string {
	running, total := sha256.New(), sha256.New()
	var lines strings.Builder
	for _, f := range files {
		_, _ = running.Write([]byte(f.Name)) // a hash never fails
		_, _ = running.Write(f.Content)
		sum := base64.StdEncoding.EncodeToString(running.Sum(nil))
		_, _ = total.Write([]byte(f.Name + sum))
		lines.WriteString(f.Name + " h1:" + sum + "\n")
	}
	return "h1:" + base64.StdEncoding.EncodeToString(total.Sum(nil)) + "\n" + lines.String()
}

func formatNames() string {
	var names []string
	for _, f := range Formats() {
		names = append(names, string(f))
	}
	return strings.Join(names, ", ")
}
