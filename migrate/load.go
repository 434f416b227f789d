package migrate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/schema"
)

// marker is the placeholder for the name of the schema in the files.
const marker = "outbox_schema"

// Migration is one numbered change of the tables.
type Migration struct {
	// Version counts from 1.
	Version int
	// Name is the part of the file name between number and suffix.
	Name string
	// Checksum is the SHA-256, in hex, of the file that applies it, with the placeholder for the schema.
	Checksum string

	upSQL, downSQL string
}

// migrations is a complete history, by version.
type migrations []Migration

// released returns the migrations of this module. A test checks its files, so load cannot fail here.
var released = sync.OnceValue(func() migrations {
	all, err := load(schema.Files)
	if err != nil {
		panic(err)
	}
	return all
})

// All returns the migrations of this module, by version.
func All() []Migration { return append([]Migration(nil), released()...) }

// Hash returns a short hash over all files of all migrations. It identifies a state of the tables.
func Hash() string {
	h := sha256.New()
	for _, m := range released() {
		_, _ = fmt.Fprintf(h, "%d %s\n%s\n%s\n", m.Version, m.Name, m.upSQL, m.downSQL) // a hash never fails
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

var fileName = regexp.MustCompile(`^(\d{4})_([a-z][a-z0-9_]*)\.(up|down)\.sql$`)

// load reads a history from pairs of files NNNN_name.up.sql and NNNN_name.down.sql. They must be numbered from 1
// without a gap.
func load(files fs.FS) (migrations, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, err
	}
	byVersion := map[int]*Migration{}
	for _, file := range names {
		match := fileName.FindStringSubmatch(file)
		if match == nil {
			return nil, fmt.Errorf("load migration %s: must be called NNNN_name.up.sql or NNNN_name.down.sql", file)
		}
		text, err := fs.ReadFile(files, file)
		if err != nil {
			return nil, fmt.Errorf("load migration %s: %w", file, err)
		}
		text = mutant(file, text)
		version, _ := strconv.Atoi(match[1]) // four digits
		m := byVersion[version]
		if m == nil {
			m = &Migration{Version: version, Name: match[2]}
			byVersion[version] = m
		}
		if m.Name != match[2] {
			return nil, fmt.Errorf("load migration %s: version %d is also called %s", file, version, m.Name)
		}
		if match[3] == "down" {
			m.downSQL = string(text)
			continue
		}
		sum := sha256.Sum256(text)
		m.upSQL, m.Checksum = string(text), hex.EncodeToString(sum[:])
	}
	all := make(migrations, 0, len(byVersion))
	for _, m := range byVersion {
		all = append(all, *m)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Version < all[j].Version })
	for i, m := range all {
		switch {
		case m.Version != i+1:
			return nil, fmt.Errorf("load migrations: version %d is missing", i+1)
		case m.upSQL == "" || m.downSQL == "":
			return nil, fmt.Errorf("load migration %04d_%s: up or down is missing", m.Version, m.Name)
		}
	}
	return all, nil
}

// up returns the statements that apply m to the schema.
func (m Migration) up(schema string) string { return fill(m.upSQL, schema) }

// down returns the statements that revert m.
func (m Migration) down(schema string) string { return fill(m.downSQL, schema) }

// fill replaces the marker in sql by a checked schema name.
func fill(sql, schema string) string {
	return strings.ReplaceAll(sql, marker, quote(schema))
}

func quote(schema string) string { return pgx.Identifier{schema}.Sanitize() }

// createSchema is the statement before the first migration.
const createSchema = "CREATE SCHEMA IF NOT EXISTS " + marker + ";"

const createBookkeeping = `
	CREATE TABLE IF NOT EXISTS outbox_schema.schema_migrations (
		version    integer     NOT NULL,
		name       text        NOT NULL,
		checksum   text        NOT NULL,
		applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
		CONSTRAINT schema_migrations_pkey PRIMARY KEY (version)
	);
	COMMENT ON TABLE outbox_schema.schema_migrations IS 'Migrations of the outbox, kept by outboxgen.';`

// apply runs m and records it. It creates the schema only if it does not exist, because CREATE SCHEMA IF NOT EXISTS
// needs the privilege to create one in any case.
func (m Migration) apply(ctx context.Context, tx pgx.Tx, schema string) error {
	var exists bool
	if err := tx.QueryRow(ctx, "SELECT to_regnamespace($1) IS NOT NULL", quote(schema)).Scan(&exists); err != nil {
		return err
	}
	var script []string
	if !exists {
		script = append(script, fill(createSchema, schema))
	}
	if m.Version == 1 {
		script = append(script, fill(createBookkeeping, schema))
	}
	script = append(script, m.up(schema))
	for _, sql := range script {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx,
		fill("INSERT INTO outbox_schema.schema_migrations (version, name, checksum) VALUES ($1, $2, $3)", schema),
		m.Version, m.Name, m.Checksum)
	return err
}

// revert reverts m and deletes its record. With the last record it drops the table of records.
func (m Migration) revert(ctx context.Context, tx pgx.Tx, schema string, last bool) error {
	if _, err := tx.Exec(ctx, m.down(schema)); err != nil {
		return err
	}
	if last {
		_, err := tx.Exec(ctx, fill("DROP TABLE outbox_schema.schema_migrations", schema))
		return err
	}
	_, err := tx.Exec(ctx, fill("DELETE FROM outbox_schema.schema_migrations WHERE version = $1", schema), m.Version)
	return err
}

// states compares the records of the database with m.
func (m migrations) states(ctx context.Context, tx pgx.Tx, schema string) ([]State, error) {
	applied, err := records(ctx, tx, schema)
	if err != nil {
		return nil, err
	}
	var states []State
	for _, want := range m {
		s := State{Migration: want, Err: ErrPending}
		if have, ok := applied[want.Version]; ok {
			s.AppliedAt, s.Err = have.AppliedAt, nil
			if have.Checksum != want.Checksum {
				s.Err = ErrDrift
			}
			delete(applied, want.Version)
		}
		states = append(states, s)
	}
	for _, extra := range applied {
		states = append(states, extra)
	}
	sort.Slice(states, func(i, j int) bool { return states[i].Version < states[j].Version })
	return states, nil
}

// records reads schema_migrations. Every row has ErrUnknown until it is compared with a file.
func records(ctx context.Context, tx pgx.Tx, schema string) (map[int]State, error) {
	applied := map[int]State{}
	var exists bool
	table := quote(schema) + ".schema_migrations"
	if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", table).Scan(&exists); err != nil || !exists {
		return applied, err
	}
	rows, err := tx.Query(ctx,
		fill("SELECT version, name, checksum, applied_at FROM outbox_schema.schema_migrations", schema))
	if err != nil {
		return nil, fmt.Errorf("read schema_migrations: %w", err)
	}
	var version int
	var name, checksum string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&version, &name, &checksum, &at}, func() error {
		applied[version] = State{
			Migration: Migration{Version: version, Name: name, Checksum: checksum},
			AppliedAt: at,
			Err:       ErrUnknown,
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read schema_migrations: %w", err)
	}
	return applied, nil
}
