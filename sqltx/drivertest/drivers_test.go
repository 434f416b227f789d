package drivertest

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"strconv"
	"testing"

	entdialect "entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/driver/pgdriver"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/sqltx"
	"github.com/outboxgen/outboxgen/sqltx/drivertest/ent"
	"github.com/outboxgen/outboxgen/sqltx/drivertest/events"
)

// library is a way to a database of a test.
type library struct {
	pay   func(ctx context.Context, order events.OrderPaid) error // the example of docs/start/drivers.md
	begin func(ctx context.Context, level sql.IsolationLevel) (*transaction, error)
}

// transaction is one of a library.
type transaction struct {
	tx               outbox.Tx
	exec             func(ctx context.Context, query string) error
	commit, rollback func() error
}

// libraries open a database, by the name of the driver or library.
var libraries = map[string]func(t testing.TB, pool *pgxpool.Pool) library{
	"pgx": func(_ testing.TB, pool *pgxpool.Pool) library {
		return library{
			pay: func(ctx context.Context, o events.OrderPaid) error { return payWithPgx(ctx, pool, o) },
			begin: func(ctx context.Context, level sql.IsolationLevel) (*transaction, error) {
				tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: levels[level]})
				return &transaction{
					tx:       tx,
					exec:     func(ctx context.Context, query string) error { _, err := tx.Exec(ctx, query); return err },
					commit:   func() error { return tx.Commit(context.Background()) },
					rollback: func() error { return tx.Rollback(context.Background()) },
				}, err
			},
		}
	},
	"pgx stdlib": func(t testing.TB, pool *pgxpool.Pool) library { return standard(open(t, pool, "pgx", "", "")) },
	"pgx stdlib exec": func(t testing.TB, pool *pgxpool.Pool) library {
		return standard(open(t, pool, "pgx", "default_query_exec_mode", "exec"))
	},
	"pgx stdlib simple protocol": func(t testing.TB, pool *pgxpool.Pool) library {
		return standard(open(t, pool, "pgx", "default_query_exec_mode", "simple_protocol"))
	},
	"pgx stdlib pool": func(t testing.TB, pool *pgxpool.Pool) library {
		db := stdlib.OpenDBFromPool(pool)
		t.Cleanup(func() { _ = db.Close() })
		return standard(db)
	},
	"pq": func(t testing.TB, pool *pgxpool.Pool) library { return standard(open(t, pool, "postgres", "", "")) },
	"pq binary parameters": func(t testing.TB, pool *pgxpool.Pool) library {
		return standard(open(t, pool, "postgres", "binary_parameters", "yes"))
	},
	"sqlx with pq": func(t testing.TB, pool *pgxpool.Pool) library {
		return withSQLX(sqlx.NewDb(open(t, pool, "postgres", "", ""), "postgres"))
	},
	"sqlx with pgx": func(t testing.TB, pool *pgxpool.Pool) library {
		return withSQLX(sqlx.NewDb(open(t, pool, "pgx", "", ""), "pgx"))
	},
	"gorm": func(t testing.TB, pool *pgxpool.Pool) library { return withGORM(t, pool, gorm.Config{}) },
	"gorm prepared": func(t testing.TB, pool *pgxpool.Pool) library {
		return withGORM(t, pool, gorm.Config{PrepareStmt: true})
	},
	"bun with pgx":      func(t testing.TB, pool *pgxpool.Pool) library { return withBun(open(t, pool, "pgx", "", "")) },
	"bun with pq":       func(t testing.TB, pool *pgxpool.Pool) library { return withBun(open(t, pool, "postgres", "", "")) },
	"bun with pgdriver": func(t testing.TB, pool *pgxpool.Pool) library { return withBun(openPgdriver(t, pool)) },
	"ent with pgx":      func(t testing.TB, pool *pgxpool.Pool) library { return withEnt(open(t, pool, "pgx", "", "")) },
	"ent with pq":       func(t testing.TB, pool *pgxpool.Pool) library { return withEnt(open(t, pool, "postgres", "", "")) },
}

var levels = map[sql.IsolationLevel]pgx.TxIsoLevel{
	sql.LevelReadCommitted: pgx.ReadCommitted, sql.LevelRepeatableRead: pgx.RepeatableRead, sql.LevelSerializable: pgx.Serializable,
}

// open opens the database of pool with a driver of database/sql, and with a parameter in its URL.
func open(t testing.TB, pool *pgxpool.Pool, driver, name, value string) *sql.DB {
	t.Helper()
	u, err := url.Parse(pgtest.URL(t, pool))
	require.NoError(t, err)
	q := u.Query()
	if name != "" {
		q.Set(name, value)
	}
	if !q.Has("sslmode") {
		q.Set("sslmode", "disable") // lib/pq wants TLS by default
	}
	u.RawQuery = q.Encode()
	db, err := sql.Open(driver, u.String())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// openPgdriver opens the database of pool with the driver of bun.
func openPgdriver(t testing.TB, pool *pgxpool.Pool) *sql.DB {
	t.Helper()
	cfg := pool.Config().ConnConfig
	db := sql.OpenDB(pgdriver.NewConnector(
		pgdriver.WithAddr(net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))), pgdriver.WithInsecure(true),
		pgdriver.WithUser(cfg.User), pgdriver.WithPassword(cfg.Password), pgdriver.WithDatabase(cfg.Database),
	))
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func standard(db *sql.DB) library {
	return library{
		pay: func(ctx context.Context, o events.OrderPaid) error { return payWithSQL(ctx, db, o) },
		begin: func(ctx context.Context, level sql.IsolationLevel) (*transaction, error) {
			tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
			if err != nil {
				return nil, err
			}
			return &transaction{sqltx.Wrap(tx), executor(tx), tx.Commit, tx.Rollback}, nil
		},
	}
}

func executor(tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
},
) func(context.Context, string) error {
	return func(ctx context.Context, query string) error { _, err := tx.ExecContext(ctx, query); return err }
}

func withSQLX(db *sqlx.DB) library {
	return library{
		pay: func(ctx context.Context, o events.OrderPaid) error { return payWithSQLX(ctx, db, o) },
		begin: func(ctx context.Context, level sql.IsolationLevel) (*transaction, error) {
			tx, err := db.BeginTxx(ctx, &sql.TxOptions{Isolation: level})
			if err != nil {
				return nil, err
			}
			return &transaction{sqltx.Wrap(tx), executor(tx), tx.Commit, tx.Rollback}, nil
		},
	}
}

func withGORM(t testing.TB, pool *pgxpool.Pool, cfg gorm.Config) library {
	t.Helper()
	cfg.Logger = logger.Discard
	db, err := gorm.Open(postgres.Open(pgtest.URL(t, pool)), &cfg)
	require.NoError(t, err)
	plain, err := db.DB()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plain.Close()) })
	return library{
		pay: func(ctx context.Context, o events.OrderPaid) error { return payWithGORM(ctx, db, o) },
		begin: func(ctx context.Context, level sql.IsolationLevel) (*transaction, error) {
			tx := db.WithContext(ctx).Begin(&sql.TxOptions{Isolation: level})
			if tx.Error != nil {
				return nil, tx.Error
			}
			return &transaction{
				tx:       sqltx.Wrap(tx.Statement.ConnPool.(sqltx.Tx)),
				exec:     func(ctx context.Context, query string) error { return tx.WithContext(ctx).Exec(query).Error },
				commit:   func() error { return tx.Commit().Error },
				rollback: func() error { return tx.Rollback().Error },
			}, nil
		},
	}
}

func withBun(plain *sql.DB) library {
	db := bun.NewDB(plain, pgdialect.New())
	return library{
		pay: func(ctx context.Context, o events.OrderPaid) error { return payWithBun(ctx, db, o) },
		begin: func(ctx context.Context, level sql.IsolationLevel) (*transaction, error) {
			tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
			if err != nil {
				return nil, err
			}
			return &transaction{sqltx.Wrap(tx), executor(tx), tx.Commit, tx.Rollback}, nil
		},
	}
}

func withEnt(plain *sql.DB) library {
	client := ent.NewClient(ent.Driver(entsql.OpenDB(entdialect.Postgres, plain)))
	return library{
		pay: func(ctx context.Context, o events.OrderPaid) error { return payWithEnt(ctx, client, o) },
		begin: func(ctx context.Context, level sql.IsolationLevel) (*transaction, error) {
			tx, err := client.BeginTx(ctx, &sql.TxOptions{Isolation: level})
			if err != nil {
				return nil, err
			}
			return &transaction{sqltx.Wrap(tx), executor(tx), tx.Commit, tx.Rollback}, nil
		},
	}
}
