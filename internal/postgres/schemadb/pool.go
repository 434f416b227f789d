package schemadb

import (
	"cmp"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// WarnSmallPool warns, once per start, when pool may hold fewer than need connections. what says who uses them. A pool
// that is too small breaks nothing by itself, but the renewal of leases may wait for a connection until a lease has run
// out.
func WarnSmallPool(log *slog.Logger, pool *pgxpool.Pool, need int, what string) {
	if size := int(pool.Config().MaxConns); size < need {
		log.Warn("pool has fewer connections than may be used at the same time: raise its MaxConns or lower Concurrency",
			"max_conns", size, "used", need, "used_by", what)
	}
}

// DatabaseName returns the name of the database that cfg connects to. A connection string without one means that of the
// user.
func DatabaseName(cfg *pgx.ConnConfig) string { return cmp.Or(cfg.Database, cfg.User) }

// WrapProbe is Wrap for the first statement of a run, which finds out whether pool leads to the tables of s. It is not a
// method, so that who imports a Schema does not compile a pool.
func WrapProbe(s *Schema, pool *pgxpool.Pool, err error) error {
	return s.Wrap("look for schema "+s.name+" in database "+DatabaseName(pool.Config().ConnConfig), err)
}
