package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/schema"
)

// server is the PostgreSQL that all tests share, and a session in a database with the outbox.
type server struct {
	*pgserver.Server
	mu   sync.Mutex
	conn *pgx.Conn
	made int
	open string // the xid of a transaction that stays open
	// other has that transaction. Without a reference its connection would be closed.
	other *pgx.Conn
	root  string // the folder of the module; empty means the working directory
	in    string // the database
}

func startServer(ctx context.Context) (*server, error) {
	s, err := pgserver.Start(pgserver.Options{MaxConnections: 1000, Settings: map[string]string{
		"track_functions": "all",
		// Statistics that change while cases are executed would change plans, and with them the order of locks.
		"autovacuum_naptime": "1h",
	}})
	if err != nil {
		return nil, err
	}
	server, err := migrated(ctx, s, "postgres")
	if err != nil {
		_ = s.Stop() // the other error says more
	}
	return server, err
}

// migrated returns a server with a session in a database, in which it makes the outbox.
func migrated(ctx context.Context, s *pgserver.Server, database string) (*server, error) {
	conn, err := pgx.Connect(ctx, s.URLOf(database))
	if err != nil {
		return nil, err
	}
	_, err = migrate.Up(ctx, conn, "outbox")
	return &server{Server: s, conn: conn, in: database}, err
}

// apart returns the same server with a database of its own. Rows that cases commit there are seen by no other worker.
func (s *server) apart(ctx context.Context) (*server, error) {
	name := s.name()
	if _, err := s.conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, err
	}
	own, err := migrated(ctx, s.Server, name)
	if err == nil {
		own.root = s.root
	}
	return own, err
}

// accepts reports whether PostgreSQL takes the text of a mutant: a query that it prepares, or migrations that it runs.
func (s *server) accepts(ctx context.Context, m mutant) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.file == "" {
		_, err := s.conn.Prepare(ctx, "", strings.ReplaceAll(m.text, "outbox_schema", "outbox"))
		return err == nil
	}
	tx, err := s.conn.Begin(ctx)
	if err != nil {
		return false
	}
	defer func() { _ = tx.Rollback(ctx) }()
	_, err = tx.Exec(ctx, script(m, s.newName()))
	return err == nil
}

// name returns the name of a schema that does not exist.
func (s *server) name() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newName()
}

func (s *server) newName() string {
	s.made++
	return fmt.Sprintf("mutant_%d", s.made)
}

// script makes a schema with the mutant of an object.
func script(m mutant, name string) string {
	all := "CREATE SCHEMA " + name + ";\n"
	for _, file := range migrationFiles() {
		text, _ := fs.ReadFile(schema.Files, file) // listed by the same
		if file == m.file {
			text = []byte(m.text)
		}
		all += strings.ReplaceAll(string(text), "outbox_schema", name)
	}
	return all
}

func migrationFiles() []string {
	names, _ := fs.Glob(schema.Files, "*.up.sql") // the pattern is valid
	return names
}

// forget drops the templates that the tests have made of a mutant of the schema.
func (s *server) forget(ctx context.Context, m mutant) error {
	if m.file == "" {
		return nil
	}
	h := sha256.New()
	for _, one := range migrate.All() {
		name := fmt.Sprintf("%04d_%s", one.Version, one.Name)
		up, _ := fs.ReadFile(schema.Files, name+".up.sql") // listed by migrate
		down, _ := fs.ReadFile(schema.Files, name+".down.sql")
		if name+".up.sql" == m.file {
			up = []byte(m.text)
		}
		_, _ = fmt.Fprintf(h, "%d %s\n%s\n%s\n", one.Version, one.Name, up, down) // as migrate.Hash
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rows, err := s.conn.Query(ctx, "SELECT quote_ident(datname) FROM pg_database WHERE datname LIKE $1",
		"outboxgen_template_"+hex.EncodeToString(h.Sum(nil))[:16]+"%")
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := s.conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			return err
		}
	}
	return nil
}
