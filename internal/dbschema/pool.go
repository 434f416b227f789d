package dbschema

import (
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
)

// WarnSmallPool warns, once per start, when pool may hold fewer than need connections. what says who uses them. A pool that
// is too small breaks nothing by itself, but the renewal of leases may wait for a connection until a lease has run out.
func WarnSmallPool(log *slog.Logger, pool *pgxpool.Pool, need int, what string) {
	if size := int(pool.Config().MaxConns); size < need {
		log.Warn("pool has fewer connections than may be used at the same time: raise its MaxConns or lower Concurrency",
			"max_conns", size, "used", need, "used_by", what)
	}
}
