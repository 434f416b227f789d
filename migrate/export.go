package migrate

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/outboxgen/outboxgen/internal/pgname"
)

// Format is a migration tool whose files Export can write.
type Format string

// The formats of Export.
const (
	// Plain is SQL for psql, in pairs of up and down files.
	Plain Format = "plain"
	// Goose is for pressly/goose: one file with annotations a migration.
	Goose Format = "goose"
	// Tern is for jackc/tern: one file with a dividing line a migration.
	Tern Format = "tern"
	// GolangMigrate is for golang-migrate/migrate: pairs of up and down files.
	GolangMigrate Format = "golang-migrate"
	// Atlas is for ariga/atlas: up files, as it plans the way down by itself, and their atlas.sum.
	Atlas Format = "atlas"
)

// Formats returns all formats.
func Formats() []Format { return []Format{Plain, Goose, Tern, GolangMigrate, Atlas} }

// File is one exported file.
type File struct {
	// Name has no folder.
	Name    string
	Content []byte
}

// Export returns the migrations for a schema as files of another tool, by version. The first migration
// creates the schema if there is none. The files are numbered from first, or from 1 when first is zero,
// so that they can join the history of an application; for golang-migrate or atlas it may be a
// timestamp. That tool then keeps the books: the tables are no longer a matter of Up, Down, Status and
// Validate.
func Export(schema string, format Format, first int64) ([]File, error) {
	return released().export(schema, format, first)
}

func (m migrations) export(schema string, format Format, first int64) ([]File, error) {
	if err := pgname.Check(schema); err != nil {
		return nil, err
	}
	if first < 0 {
		return nil, fmt.Errorf("export migrations: first number %d: must not be negative", first)
	}
	first = max(first, 1)
	var files []File
	for i, mig := range m {
		number, name := first+int64(i), "outbox_"+mig.Name
		up, down := section(mig.up(schema)), section(mig.down(schema))
		if i == 0 {
			up = fill(createSchema, schema) + "\n\n" + up
		}
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
		default:
			return nil, fmt.Errorf("export migrations: unknown format %q: want one of %s", format, formatNames())
		}
	}
	if format == Atlas {
		files = append(files, file("atlas.sum", atlasSum(files)))
	}
	return files, nil
}

func file(name, content string) File { return File{Name: name, Content: []byte(content)} }

// pair renders the two files that plain SQL and golang-migrate want.
func pair(layout string, number int64, name, up, down string) []File {
	base := fmt.Sprintf(layout, number, name)
	return []File{file(base+".up.sql", up), file(base+".down.sql", down)}
}

// section ends sql with one newline.
func section(sql string) string { return strings.TrimSpace(sql) + "\n" }

// gooseBody keeps goose from splitting a function body at its semicolons.
func gooseBody(sql string) string {
	if !strings.Contains(sql, "$$") {
		return sql
	}
	return "-- +goose StatementBegin\n" + sql + "-- +goose StatementEnd\n"
}

// atlasSum renders the integrity file of atlas (ariga.io/atlas, sql/migrate, HashFile): a running hash
// over the names and contents so far for each file, and on the first line a hash over those lines.
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
