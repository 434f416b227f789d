package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// freshTimeline is how long after a promotion Doctor says that there was one.
const freshTimeline = 24 * time.Hour

// checkReplication: what a promotion may lose, and that there was one.
func checkReplication(ctx context.Context, e *examination) (found []Finding, err error) {
	err = e.read(ctx, func(ctx context.Context, tx pgx.Tx, _ *queries.Queries) error {
		var standby, mayList bool
		if err := tx.QueryRow(ctx,
			`SELECT pg_is_in_recovery(), has_function_privilege('pg_catalog.pg_ls_waldir()', 'EXECUTE')`).
			Scan(&standby, &mayList); err != nil {
			return err
		}
		if standby {
			return nil // checkServer says so
		}
		if mayList {
			if found, err = promoted(ctx, tx); err != nil {
				return err
			}
		}
		more, err := asynchronous(ctx, tx)
		found = append(found, more...)
		return err
	})
	return found, err
}

// promoted finds a new timeline: PostgreSQL begins one, and writes a file, when a standby is promoted and when a restore to a
// point in time ends.
func promoted(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	type timeline struct {
		Name  string
		Since pgtype.Timestamptz
		AgeUS int64
	}
	rows, err := rowsOf[timeline](ctx, tx,
		`SELECT substr(w.name, 1, 8), w.modification, (extract(epoch FROM clock_timestamp() - w.modification) * 1000000)::bigint
		FROM pg_ls_waldir() AS w
		WHERE w.name = substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '.history'
		  AND w.modification > clock_timestamp() - $1::bigint * interval '1 microsecond'`, freshTimeline.Microseconds())
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	t := rows[0]
	return []Finding{{
		Severity: SeverityNotice,
		Text: fmt.Sprintf("timeline %s began %s ago, at %s: a standby was promoted, or a backup was restored to a point in time",
			t.Name, age(microseconds(t.AgeUS)), t.Since.Time.UTC().Format(time.RFC3339)),
		Means: "what had not reached this server is lost: events that were enqueued then may have had their effects, and " +
			"events that were handled then are handled again",
		Fix: "keep the old server away from the programs; if consumers order events by a version, raise the versions above " +
			"what they have seen (docs/operate/drills.md)",
	}}, nil
}

// asynchronous finds standbys for which no commit waits, if there are no others.
func asynchronous(ctx context.Context, tx pgx.Tx) (found []Finding, err error) {
	type standby struct {
		Name   string
		Behind int64
	}
	rows, err := rowsOf[standby](ctx, tx,
		`SELECT coalesce(r.application_name, ''), greatest(pg_current_wal_lsn() - coalesce(r.flush_lsn, r.sent_lsn), 0)::bigint
		FROM pg_catalog.pg_stat_replication AS r
		WHERE r.state = 'streaming'
		  AND NOT EXISTS (
			SELECT FROM pg_catalog.pg_replication_slots AS s WHERE s.active_pid = r.pid AND s.slot_type = 'logical'
		  )
		  AND NOT EXISTS (
			SELECT FROM pg_catalog.pg_stat_replication AS o WHERE o.sync_state IN ('sync', 'quorum')
		  )
		ORDER BY 2
		LIMIT $1`, shownHolders)
	for _, r := range rows {
		found = append(found, Finding{
			Severity: SeverityNotice,
			Text: fmt.Sprintf("standby %q replicates asynchronously, and is %d kB behind",
				brief(r.Name), (r.Behind+1023)>>10),
			Means: "if this server dies and the standby is promoted, the commits that it has not received are lost, with their events",
			Fix:   "nothing, if that may be; otherwise set synchronous_standby_names",
		})
	}
	return found, err
}
