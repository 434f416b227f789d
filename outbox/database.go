package outbox

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/dbschema"
	"github.com/outboxgen/outboxgen/internal/dbsqlc"
)

// database is a schema as the runtime sees it.
type database struct {
	*dbschema.Schema
	schema string
}

// openDatabase checks a schema name and returns its queries. The empty name means "outbox".
func openDatabase(schema string) (*database, error) {
	if schema == "" {
		schema = "outbox"
	}
	s, err := dbschema.Open(schema)
	if err != nil {
		return nil, fmt.Errorf("open schema: %w", err)
	}
	return &database{Schema: s, schema: schema}, nil
}

// on returns the queries of d, run in tx.
func (d *database) on(tx pgx.Tx) *dbsqlc.Queries { return d.On(tx) }

// each returns the queries of d, each run by db in a READ COMMITTED transaction of its own.
func (d *database) each(db dbschema.Sender) *dbsqlc.Queries { return d.Each(db) }

// tx runs call in a READ COMMITTED transaction.
func (d *database) tx(ctx context.Context, db dbschema.Beginner, what string, call func(*dbsqlc.Queries) error) error {
	return wrap(what, d.InTx(ctx, db, call))
}

// queue puts the statement of call into b.
func (d *database) queue(b *pgx.Batch, call func(*dbsqlc.Queries)) *pgx.QueuedQuery {
	text, args := d.record(call)
	return b.Queue(text, args...)
}

// record runs call against a database that only notes the statement, and returns it: the way to put a
// query that sqlc has compiled, its arguments in the right order, into a batch.
func (d *database) record(call func(*dbsqlc.Queries)) (query string, args []any) {
	r := &recorder{}
	call(dbsqlc.New(r))
	return d.Text(r.query), r.args
}

var errRecorded = errors.New("recorded, not run")

type recorder struct {
	query string
	args  []any
}

func (r *recorder) Exec(_ context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	r.query, r.args = query, args
	return pgconn.CommandTag{}, errRecorded
}

func (r *recorder) Query(_ context.Context, query string, args ...any) (pgx.Rows, error) {
	r.query, r.args = query, args
	return nil, errRecorded
}

func (r *recorder) QueryRow(_ context.Context, query string, args ...any) pgx.Row {
	r.query, r.args = query, args
	return recordedRow{}
}

type recordedRow struct{}

func (recordedRow) Scan(...any) error { return errRecorded }

// bell is the doorbell of a namespace: the advisory lock that a sleeping dispatcher holds, and the
// channel on which an enqueuing transaction rings when it finds the lock held.
type bell struct {
	key     int64
	channel string
}

func (d *database) bell(namespace string) bell {
	h := fnv.New64a()
	h.Write([]byte("outboxgen:" + d.schema + "/" + namespace))
	sum := h.Sum64()
	return bell{key: int64(sum), channel: fmt.Sprintf("outboxgen_%016x", sum)}
}

// lock is the advisory lock that keeps apart what moves cursors other than forward, and pruning.
func (d *database) lock() int64 { return d.bell("log lock").key }

// warnSmallPool warns, once per start, when pool may hold fewer than need connections. what says who uses them. A pool that
// is too small breaks nothing by itself, but whoever renews leases may wait for a connection until a lease has run out.
func warnSmallPool(log *slog.Logger, pool *pgxpool.Pool, need int, what string) {
	if size := int(pool.Config().MaxConns); size < need {
		log.Warn("pool has fewer connections than may be used at the same time: raise its MaxConns or lower Concurrency",
			"max_conns", size, "used", need, "used_by", what)
	}
}

func wrap(what string, err error) error { return dbschema.Wrap(what, err) }
