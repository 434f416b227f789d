package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/migrate"
)

// Severity says how soon somebody should act on a Finding.
type Severity string

// The severities, the most urgent first.
const (
	// SeverityError: something does not work, or events are in danger.
	SeverityError Severity = "error"
	// SeverityWarning: something gets slow, or it will not work soon.
	SeverityWarning Severity = "warning"
	// SeverityNotice: it is worth knowing, and may be as it is meant to be.
	SeverityNotice Severity = "notice"
)

// Finding is something that Doctor has found.
type Finding struct {
	// Check is the name of the check, one of DoctorChecks.
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Text says what was seen, Means what follows from it, and Fix which command or SQL helps. Fix may be advice.
	Text  string `json:"text"`
	Means string `json:"means"`
	Fix   string `json:"fix"`
}

// DoctorConfig says for whom Doctor checks. Its zero value is valid.
type DoctorConfig struct {
	// Roles are what the role of the pool is to do: what it may not do is an error then. Nil means that a notice says what
	// it may do, unless it may do everything.
	Roles []migrate.Role
	// ListenPool is what the application gives as ListenPool. Nil means the pool of the Admin.
	ListenPool *pgxpool.Pool
	// PoolSize is MaxConns of the application's pool; 0 means that it is not known, and not checked.
	PoolSize int
	// OldTransaction is the age from which a transaction is too old. It is an error from twelve times that age. 0 means
	// five minutes, so that an error is an hour.
	OldTransaction time.Duration

	pinned int64 // transaction ids that a slot or a standby may lag behind; 0 means pinnedXIDs
}

const (
	checkTime   = 2 * time.Second // for what a check asks of the database
	oldDefault  = 5 * time.Minute
	errorFactor = 12 // an error has twelve times the age of a warning
	pinnedXIDs  = 1_000_000
)

func (c DoctorConfig) validate() error {
	for _, role := range c.Roles {
		if !slices.Contains(migrate.Roles(), role) {
			return argumentError("DoctorConfig", "%q is not a valid role: use producer, dispatcher, operator, reader or viewer", role)
		}
	}
	switch {
	case c.PoolSize < 0:
		return argumentError("DoctorConfig", "PoolSize %d is negative", c.PoolSize)
	case c.OldTransaction < 0:
		return argumentError("DoctorConfig", "OldTransaction %v is negative", c.OldTransaction)
	}
	return nil
}

// doctorCheck is one check. An error means that it could not be done.
type doctorCheck struct {
	name string
	run  func(context.Context, *examination) ([]Finding, error)
}

// doctorChecks is the table of the checks, in the order in which they run.
func doctorChecks() []doctorCheck {
	return []doctorCheck{
		{"migrations", checkMigrations},
		{"schema", checkSchema},
		{"server", checkServer},
		{"replication", checkReplication},
		{"settings", checkSettings},
		{"clock", checkClock},
		{"privileges", checkPrivileges},
		{"row security", checkRowSecurity},
		{"enqueue", checkEnqueue},
		{"listen", checkListen},
		{"sessions", checkSessions},
		{"connections", checkConnections},
		{"old snapshots", checkSnapshots},
		{"vacuum", checkVacuum},
		{"bloat", checkBloat},
		{"wraparound", checkWraparound},
		{"queue", checkQueue},
		{"handlers", checkHandlers},
		{"processes", checkProcesses},
		{"pauses", checkPauses},
		{"limits", checkLimits},
		{"rows", checkRows},
		{"log", checkLog},
		{"listeners", checkListeners},
		{"consumers", checkConsumers},
	}
}

// DoctorChecks returns the names of the checks of Doctor.
func DoctorChecks() []string {
	var names []string
	for _, c := range doctorChecks() {
		names = append(names, c.name)
	}
	return names
}

// examination is one run of Doctor.
type examination struct {
	*Admin // on a separate pool
	cfg    DoctorConfig

	state    schemaState // what checkMigrations has found
	unseen   []string    // what the role may not see
	unsolved []Finding   // checks that could not be done for another reason
}

// Doctor checks the database and the connection to it as an application has them: by what works and what happens, where
// that can be tried. It returns the findings, the most urgent first, and nil if there is none. Doctor changes nothing:
// it enqueues events only in transactions that it rolls back, which leaves gaps in the sequence of the log. It works if
// tables are missing, and without the privilege for some of the checks, which is a notice then. Each check has two
// seconds, and five to wait for a notification.
//
// Doctor opens up to four connections with the configuration of the pool and uses no others. It returns an error if it
// cannot connect, if the connection is lost, or if ctx ends. It may be called by any number of goroutines.
func (a *Admin) Doctor(ctx context.Context, cfg DoctorConfig) ([]Finding, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	cfg.OldTransaction = cmp.Or(cfg.OldTransaction, oldDefault)
	cfg.pinned = cmp.Or(cfg.pinned, pinnedXIDs)
	pool, err := ownPool(ctx, a.pool)
	if err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	defer pool.Close()
	if err := pool.Ping(ctx); err != nil {
		return nil, fmt.Errorf("doctor: connect: %w", err)
	}
	own := *a
	own.pool = pool
	e := &examination{Admin: &own, cfg: cfg}
	var all []Finding
	for _, c := range doctorChecks() {
		found, err := c.run(ctx, e)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			if err := e.undone(ctx, c.name, err); err != nil {
				return nil, fmt.Errorf("doctor: check %s: %w", c.name, err)
			}
		}
		for _, f := range found {
			f.Check = c.name
			all = append(all, f)
		}
	}
	all = append(all, e.unsolved...)
	if len(e.unseen) > 0 {
		all = append(all, Finding{
			Check: "privileges", Severity: SeverityNotice,
			Text:  "not checked, because the role may not see it: " + strings.Join(e.unseen, ", "),
			Means: "what these checks would find is not found",
			Fix:   "run doctor as a member of the roles operator and pg_read_all_stats (outboxgen migrate get --roles)",
		})
	}
	order := []Severity{SeverityError, SeverityWarning, SeverityNotice}
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Compare(slices.Index(order, a.Severity), slices.Index(order, b.Severity))
	})
	return all, nil
}

// ownPool returns a pool like that of the application. It does not use prepared statements, which a pooler may lose.
func ownPool(ctx context.Context, of *pgxpool.Pool) (*pgxpool.Pool, error) {
	cfg := of.Config()
	cfg.MinConns, cfg.MinIdleConns, cfg.MaxConns = 0, 0, 4
	if cfg.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeSimpleProtocol {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

// undone records why a check could not be done. It returns an error if the others cannot be done either.
func (e *examination) undone(ctx context.Context, name string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "42P01", "3F000", "42703", "42883": // no such table, schema, column or function: the checks of the schema say so
			return nil
		case "42501":
			e.unseen = append(e.unseen, fmt.Sprintf("%s (%s)", name, pg.Message))
			return nil
		}
	}
	if pingErr := e.pool.Ping(ctx); pingErr != nil {
		return err
	}
	text := "the check was not done: " + err.Error()
	if errors.Is(err, context.DeadlineExceeded) || pg != nil && (pg.Code == "57014" || pg.Code == "55P03") {
		text = fmt.Sprintf("the check was not done within %v", checkTime)
	}
	e.unsolved = append(e.unsolved, Finding{
		Check: name, Severity: SeverityNotice, Text: text,
		Means: "what it would find is not found; a busy database, or a lock such as that of a migration, may be the reason",
		Fix:   "outboxgen doctor",
	})
	return nil
}

// read runs call in a READ COMMITTED transaction that is rolled back and whose statements are bounded.
func (e *examination) read(ctx context.Context, call func(context.Context, pgx.Tx, *queries.Queries) error) error {
	return e.try(ctx, pgx.ReadOnly, call)
}

// try is read for a transaction of any mode; "" is the default of the role.
func (e *examination) try(
	ctx context.Context, mode pgx.TxAccessMode, call func(context.Context, pgx.Tx, *queries.Queries) error,
) error {
	within, cancel := context.WithTimeout(ctx, 2*checkTime) // the server's timeout comes first, and keeps the connection
	defer cancel()
	tx, err := e.pool.BeginTx(within, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: mode})
	if err != nil {
		return err
	}
	// an error of the connection is found by the next statement
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	ms := checkTime.Milliseconds()
	if _, err := tx.Exec(within, fmt.Sprintf("SET LOCAL statement_timeout = %d; SET LOCAL lock_timeout = %d; "+
		"SET LOCAL search_path = pg_catalog, pg_temp", ms, ms),
		pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	return call(within, tx, e.db.On(tx))
}

// rowsOf collects the rows of a query on the catalogs.
func rowsOf[T any](ctx context.Context, db interface {
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
}, query string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// ownRelations are those of the tables $2 that exist in the schema $1.
const ownRelations = `SELECT c.oid, c.relname FROM pg_catalog.pg_class AS c
	JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
	WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND c.relname = ANY ($2::text[])`

// ownTables are the names of our tables.
func ownTables() []string {
	var names []string
	for _, g := range migrate.Grants(migrate.Reader) {
		if g.Kind == "TABLE" && !g.Optional && g.Object != "event_status" {
			names = append(names, g.Object)
		}
	}
	return names
}

// age renders a duration in its largest unit.
func age(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%d days", d/day)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%d s", d/time.Second)
}
