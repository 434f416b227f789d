//go:build mutation

package pgtest

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// usedSQL lists the tables and functions of a database that were used. Functions are counted if track_functions is all.
const usedSQL = `
	SELECT 'table ' || relname FROM pg_stat_user_tables
	WHERE coalesce(seq_scan, 0) + coalesce(idx_scan, 0) + n_tup_ins + n_tup_upd + n_tup_del > 0
	UNION ALL
	SELECT DISTINCT 'function ' || funcname FROM pg_stat_user_functions`

// trace appends to the file OUTBOXGEN_MUTATION_TRACE what was used of the database at dsn.
func trace(t testing.TB, dsn string) {
	file := os.Getenv("OUTBOXGEN_MUTATION_TRACE")
	if file == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return // the test has killed its server, or dropped the database
	}
	defer func() { _ = conn.Close(ctx) }()
	// The other sessions report when they end.
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); <-time.After(Interval) {
		others := 0
		err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "+
			"backend_type = 'client backend' AND pid <> pg_backend_pid()").Scan(&others)
		if err != nil || others == 0 {
			break
		}
	}
	rows, err := conn.Query(ctx, usedSQL)
	if err != nil {
		return
	}
	used, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return
	}
	out, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Errorf("pgtest: trace: %v", err)
		return
	}
	_, err = out.WriteString(strings.Join(used, "\n") + "\n")
	if end := out.Close(); err != nil || end != nil {
		t.Errorf("pgtest: trace: %v, %v", err, end)
	}
}
