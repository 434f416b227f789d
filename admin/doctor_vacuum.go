package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// The dead rows of a table are many from deadFactor times what autovacuum waits for, and deadRows.
const (
	deadFactor = 5
	deadRows   = 10_000
)

// checkVacuum: autovacuum keeps up with our tables.
func checkVacuum(ctx context.Context, e *examination) (found []Finding, err error) {
	type table struct {
		Name       string
		Dead, Wait int64
		Latest     pgtype.Timestamptz
		Off        bool
	}
	var rows []table
	err = e.read(ctx, func(ctx context.Context, tx pgx.Tx, _ *queries.Queries) error {
		rows, err = rowsOf[table](ctx, tx, `
			WITH own AS (
				SELECT r.relname::text AS name, c.oid, greatest(c.reltuples, 0) AS tuples,
					(SELECT o.option_value FROM pg_options_to_table(c.reloptions) AS o
						WHERE o.option_name = 'autovacuum_vacuum_threshold') AS threshold,
					(SELECT o.option_value FROM pg_options_to_table(c.reloptions) AS o
						WHERE o.option_name = 'autovacuum_vacuum_scale_factor') AS scale,
					(SELECT o.option_value FROM pg_options_to_table(c.reloptions) AS o
						WHERE o.option_name = 'autovacuum_enabled') AS enabled
				FROM (`+ownRelations+`) AS r
				JOIN pg_catalog.pg_class AS c ON c.oid = r.oid
			)
			SELECT o.name, s.n_dead_tup,
				(coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold'))::float8
				+ coalesce(o.scale, current_setting('autovacuum_vacuum_scale_factor'))::float8 * o.tuples)::bigint,
				greatest(s.last_vacuum, s.last_autovacuum), NOT coalesce(o.enabled, 'on')::boolean
			FROM own AS o
			JOIN pg_catalog.pg_stat_all_tables AS s ON s.relid = o.oid
			ORDER BY o.name`, e.db.Name(), ownTables())
		return err
	})
	for _, t := range rows {
		name := pgx.Identifier{e.db.Name()}.Sanitize() + "." + t.Name
		if t.Off {
			found = append(found, Finding{
				Severity: SeverityError,
				Text:     fmt.Sprintf("autovacuum is off for table %s, which has %d dead rows", t.Name, t.Dead),
				Means:    "dead rows are never removed: claims, looks and leases get slower and slower, and the table grows",
				Fix:      fmt.Sprintf("ALTER TABLE %s RESET (autovacuum_enabled); VACUUM (ANALYZE) %s;", name, name),
			})
			continue
		}
		if t.Dead < deadRows || t.Dead < deadFactor*t.Wait {
			continue
		}
		latest := "it was never vacuumed"
		if t.Latest.Valid {
			latest = "it was last vacuumed at " + t.Latest.Time.UTC().Format("2006-01-02 15:04:05Z")
		}
		found = append(found, Finding{
			Severity: SeverityWarning,
			Text:     fmt.Sprintf("table %s has %d dead rows, and autovacuum starts at %d: %s", t.Name, t.Dead, t.Wait, latest),
			Means: "claims, looks and leases read the dead rows too, and get slower; autovacuum is too slow, or something " +
				"pins old versions (check old snapshots)",
			Fix: fmt.Sprintf("VACUUM (ANALYZE, VERBOSE) %s; then raise autovacuum_max_workers or lower "+
				"autovacuum_vacuum_cost_delay", name),
		})
	}
	return found, err
}

// A relation is bloated from bloatFactor times its estimated size, and bloatBytes.
const (
	bloatFactor = 4
	bloatBytes  = 32 << 20
)

// checkBloat: our tables and indexes are not much larger than their rows need. The estimate is that of their latest
// ANALYZE.
func checkBloat(ctx context.Context, e *examination) (found []Finding, err error) {
	type relation struct {
		Name, Of   string
		Bytes, Est int64
	}
	var rows []relation
	err = e.read(ctx, func(ctx context.Context, tx pgx.Tx, _ *queries.Queries) error {
		rows, err = rowsOf[relation](ctx, tx, `
			WITH own AS (
				SELECT r.relname::text AS name, c.oid, c.reltuples,
					coalesce((SELECT o.option_value FROM pg_options_to_table(c.reloptions) AS o
						WHERE o.option_name = 'fillfactor'), '100')::float8 / 100 AS fill
				FROM (`+ownRelations+`) AS r
				JOIN pg_catalog.pg_class AS c ON c.oid = r.oid
				WHERE c.reltuples >= 0
			),
			width AS (
				SELECT s.tablename::text AS name, sum(s.avg_width * (1 - s.null_frac)) AS bytes
				FROM pg_catalog.pg_stats AS s
				WHERE s.schemaname = $1
				GROUP BY s.tablename
			)
			SELECT o.name, '' AS of, pg_relation_size(o.oid), (o.reltuples * (32 + coalesce(w.bytes, 100)) / o.fill)::bigint
			FROM own AS o
			LEFT JOIN width AS w ON w.name = o.name
			UNION ALL
			SELECT i.relname::text, o.name, pg_relation_size(i.oid), (o.reltuples * 150)::bigint
			FROM own AS o
			JOIN pg_catalog.pg_index AS x ON x.indrelid = o.oid
			JOIN pg_catalog.pg_class AS i ON i.oid = x.indexrelid
			ORDER BY 2, 1`, e.db.Name(), ownTables())
		return err
	})
	schema := pgx.Identifier{e.db.Name()}.Sanitize() + "."
	for _, r := range rows {
		if r.Bytes < bloatBytes || r.Bytes < bloatFactor*r.Est {
			continue
		}
		f := Finding{
			Severity: SeverityNotice,
			Text:     fmt.Sprintf("table %s has %d MB, and its rows need about %d MB", r.Name, r.Bytes>>20, r.Est>>20),
			Means:    "a backlog or many deletes have left room that new rows will use; scans of the table read it meanwhile",
			Fix: fmt.Sprintf("nothing, if a backlog is to be expected again; else pg_repack, or in a maintenance window: "+
				"VACUUM FULL %s%s;", schema, r.Name),
		}
		if r.Of != "" {
			f.Text = fmt.Sprintf("index %s of %s has %d MB, and its entries need about %d MB", r.Name, r.Of, r.Bytes>>20,
				r.Est>>20)
			f.Means = "looks and claims read more pages"
			f.Fix = fmt.Sprintf("REINDEX INDEX CONCURRENTLY %s%s;", schema, r.Name)
		}
		found = append(found, f)
	}
	return found, err
}
