package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/migrate"
)

// A server is the PostgreSQL of a run. It is durable (fsync and full_page_writes on) and has the settings of its
// distribution, except those in start.
type server struct {
	pg      *pgserver.Server
	version string
	made    int
}

func start() (*server, error) {
	pg, err := pgserver.Start(pgserver.Options{
		Durable: true,
		Settings: map[string]string{
			"shared_buffers":     "512MB",
			"max_wal_size":       "8GB", // so that no run pays for the checkpoint of another
			"checkpoint_timeout": "30min",
			"autovacuum":         "on",
		},
	})
	if err != nil {
		return nil, err
	}
	s := &server{pg: pg}
	err = s.admin(context.Background(), func(conn *pgx.Conn) error {
		return conn.QueryRow(context.Background(), "SHOW server_version").Scan(&s.version)
	})
	if err != nil {
		_ = pg.Stop()
		return nil, err
	}
	return s, nil
}

func (s *server) stop() error { return s.pg.Stop() }

func (s *server) admin(ctx context.Context, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, s.pg.URL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return do(conn)
}

// A database is created for one run of one contender.
type database struct {
	server *server
	name   string
	url    string
	pool   *pgxpool.Pool
}

// database creates a database with our tables and 1,000 accounts, and does a checkpoint.
func (s *server) database(ctx context.Context) (*database, error) {
	s.made++
	db := &database{server: s, name: fmt.Sprintf("run_%d", s.made)}
	db.url = s.pg.URLOf(db.name)
	err := s.admin(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE DATABASE "+db.name)
		return err
	})
	if err != nil {
		return nil, err
	}
	if db.pool, err = db.open(ctx, 16); err != nil {
		return nil, err
	}
	if err := db.fill(ctx); err != nil {
		return nil, errors.Join(err, db.drop(context.WithoutCancel(ctx)))
	}
	return db, nil
}

func (db *database) fill(ctx context.Context) error {
	if _, err := migrate.Up(ctx, db.pool, "outbox"); err != nil {
		return err
	}
	for _, sql := range [...]string{
		"CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50)",
		"INSERT INTO account SELECT i, 0 FROM generate_series(1, 1000) AS i",
		"VACUUM ANALYZE account",
	} {
		if _, err := db.pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return db.settle(ctx)
}

// open returns a pool of another size than db.pool.
func (db *database) open(ctx context.Context, conns int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(db.url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = conns
	return pgxpool.NewWithConfig(ctx, cfg)
}

// settle does a checkpoint. Call it between the preparation of a run and its measured part.
func (db *database) settle(ctx context.Context) error {
	_, err := db.pool.Exec(ctx, "CHECKPOINT")
	return err
}

func (db *database) drop(ctx context.Context) error {
	db.pool.Close()
	return db.server.admin(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "DROP DATABASE "+db.name+" WITH (FORCE)")
		return err
	})
}

// count checks a number in the database after a run.
func (db *database) count(ctx context.Context, want int, what, query string, args ...any) error {
	var got int
	if err := db.pool.QueryRow(ctx, query, args...).Scan(&got); err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%s: %d, want %d", what, got, want)
	}
	return nil
}
