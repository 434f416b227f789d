package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// shownHolders bounds the findings of a kind.
const shownHolders = 5

const pinMeans = "PostgreSQL keeps every row version that was replaced since, so claims, looks and leases of " +
	"listeners get slower and slower, and tables grow"

// checkSnapshots: no transaction, prepared transaction, replication slot or standby keeps PostgreSQL from removing old
// row versions.
func checkSnapshots(ctx context.Context, e *examination) (found []Finding, err error) {
	var seesAll bool
	err = e.read(ctx, func(ctx context.Context, tx pgx.Tx, _ *queries.Queries) error {
		if err := tx.QueryRow(ctx, "SELECT pg_has_role('pg_read_all_stats', 'USAGE')").Scan(&seesAll); err != nil {
			return err
		}
		for _, part := range []func(context.Context, pgx.Tx) ([]Finding, error){
			e.oldSessions, e.oldPrepared, e.oldSlots, e.oldStandbys,
		} {
			more, err := part(ctx, tx)
			if err != nil {
				return err
			}
			found = append(found, more...)
		}
		return nil
	})
	if err == nil && !seesAll {
		e.unseen = append(e.unseen, "old snapshots (sessions of other roles)")
	}
	return found, err
}

// severityOf is that of something that has lasted for so long.
func (e *examination) severityOf(d time.Duration) Severity {
	if d >= errorFactor*e.cfg.OldTransaction {
		return SeverityError
	}
	return SeverityWarning
}

// severityBehind is that of something that lags behind by so many transactions, where no time is known.
func (e *examination) severityBehind(xids int64) Severity {
	if xids >= errorFactor*e.cfg.pinned {
		return SeverityError
	}
	return SeverityWarning
}

func (e *examination) oldSessions(ctx context.Context, tx pgx.Tx) (found []Finding, err error) {
	type session struct {
		PID                      int32
		Application, Role, State string
		AgeUS                    int64
		QueryStart               pgtype.Timestamptz
	}
	rows, err := rowsOf[session](ctx, tx,
		`SELECT a.pid, coalesce(a.application_name, ''), coalesce(a.usename::text, ''), coalesce(a.state, a.backend_type, ''),
			(extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000)::bigint, a.query_start
		FROM pg_catalog.pg_stat_activity AS a
		WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
		  AND (a.datname = current_database() OR a.datname IS NULL)
		  AND a.pid <> pg_backend_pid()
		  AND a.backend_type NOT IN ('autovacuum worker', 'walsender')
		  AND a.xact_start <= clock_timestamp() - $1::bigint * interval '1 microsecond'
		ORDER BY a.xact_start
		LIMIT $2`, e.cfg.OldTransaction.Microseconds(), shownHolders)
	for _, s := range rows {
		d := microseconds(s.AgeUS)
		started := ""
		if s.QueryStart.Valid {
			started = ", its latest statement began at " + s.QueryStart.Time.UTC().Format(time.RFC3339)
		}
		found = append(found, Finding{
			Severity: e.severityOf(d),
			Text: fmt.Sprintf("session %d (application %q, role %s, %s) has been in one transaction for %s%s",
				s.PID, brief(s.Application), s.Role, s.State, age(d), started),
			Means: pinMeans,
			Fix:   fmt.Sprintf("end its transaction, or: SELECT pg_terminate_backend(%d);", s.PID),
		})
	}
	return found, err
}

// brief is a name that somebody else has chosen.
func brief(name string) string {
	if runes := []rune(name); len(runes) > 40 {
		return string(runes[:40]) + "..."
	}
	return name
}

func (e *examination) oldPrepared(ctx context.Context, tx pgx.Tx) (found []Finding, err error) {
	type prepared struct {
		GID, Owner, Database string
		AgeUS                int64
	}
	rows, err := rowsOf[prepared](ctx, tx,
		`SELECT p.gid, p.owner::text, p.database::text, (extract(epoch FROM clock_timestamp() - p.prepared) * 1000000)::bigint
		FROM pg_catalog.pg_prepared_xacts AS p
		WHERE p.database = current_database() AND p.prepared <= clock_timestamp() - $1::bigint * interval '1 microsecond'
		ORDER BY p.prepared LIMIT $2`, e.cfg.OldTransaction.Microseconds(), shownHolders)
	for _, p := range rows {
		d := microseconds(p.AgeUS)
		found = append(found, Finding{
			Severity: e.severityOf(d),
			Text:     fmt.Sprintf("prepared transaction %q of role %s has been open for %s", brief(p.GID), p.Owner, age(d)),
			Means:    pinMeans + "; it also keeps its locks",
			Fix:      fmt.Sprintf("let its coordinator end it, or: ROLLBACK PREPARED %s;", literal(p.GID)),
		})
	}
	return found, err
}

func (e *examination) oldSlots(ctx context.Context, tx pgx.Tx) (found []Finding, err error) {
	type slot struct {
		Name, Kind string
		Active     bool
		Behind     int64
	}
	rows, err := rowsOf[slot](ctx, tx, `SELECT s.slot_name::text, s.slot_type, s.active, age(s.xmin)::bigint
		FROM pg_catalog.pg_replication_slots AS s
		WHERE s.xmin IS NOT NULL AND age(s.xmin) >= $1
		ORDER BY age(s.xmin) DESC LIMIT $2`, e.cfg.pinned, shownHolders)
	for _, s := range rows {
		state := "active"
		if !s.Active {
			state = "inactive"
		}
		found = append(found, Finding{
			Severity: e.severityBehind(s.Behind),
			Text:     fmt.Sprintf("replication slot %s (%s, %s) is %d transactions behind", s.Name, s.Kind, state, s.Behind),
			Means:    pinMeans,
			Fix: fmt.Sprintf("bring its consumer back, or if nobody needs it: SELECT pg_drop_replication_slot(%s);",
				literal(s.Name)),
		})
	}
	return found, err
}

func (e *examination) oldStandbys(ctx context.Context, tx pgx.Tx) (found []Finding, err error) {
	type standby struct {
		PID    int32
		Name   string
		Behind int64
	}
	rows, err := rowsOf[standby](ctx, tx, `SELECT r.pid, coalesce(r.application_name, ''), age(r.backend_xmin)::bigint
		FROM pg_catalog.pg_stat_replication AS r
		WHERE r.backend_xmin IS NOT NULL AND age(r.backend_xmin) >= $1
		ORDER BY age(r.backend_xmin) DESC LIMIT $2`, e.cfg.pinned, shownHolders)
	for _, r := range rows {
		found = append(found, Finding{
			Severity: e.severityBehind(r.Behind),
			Text: fmt.Sprintf("standby %q (pid %d) has a query that is %d transactions old, and hot_standby_feedback is on",
				brief(r.Name), r.PID, r.Behind),
			Means: pinMeans,
			Fix:   "end the query on the standby, or set hot_standby_feedback = off there",
		})
	}
	return found, err
}
