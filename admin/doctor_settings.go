package admin

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// The versions of PostgreSQL that outboxgen is made for.
const (
	oldestMajor = 14
	newestMajor = 18
)

// checkServer: the version, the encoding, whether it accepts writes, and whether it keeps them.
func checkServer(ctx context.Context, e *examination) (found []Finding, err error) {
	var number int
	var encoding, fsync, autovacuum, counts, readOnly string
	var standby bool
	err = e.read(ctx, func(ctx context.Context, tx pgx.Tx, _ *queries.Queries) error {
		return tx.QueryRow(ctx,
			`SELECT current_setting('server_version_num')::integer, current_setting('server_encoding'), pg_is_in_recovery(),
			current_setting('fsync'), current_setting('autovacuum'), current_setting('track_counts'),
			current_setting('default_transaction_read_only')`).
			Scan(&number, &encoding, &standby, &fsync, &autovacuum, &counts, &readOnly)
	})
	if err != nil {
		return nil, err
	}
	switch major := number / 10000; {
	case major < oldestMajor:
		found = append(found, Finding{
			Severity: SeverityError, Text: fmt.Sprintf("the server is PostgreSQL %d", major),
			Means: "the tables and queries need 14 or later", Fix: "upgrade the server",
		})
	case major > newestMajor:
		found = append(found, Finding{
			Severity: SeverityNotice, Text: fmt.Sprintf("the server is PostgreSQL %d", major),
			Means: fmt.Sprintf("this version of outboxgen is tested with %d to %d", oldestMajor, newestMajor),
			Fix:   "look for a newer version of outboxgen",
		})
	}
	if encoding != "UTF8" {
		found = append(found, Finding{
			Severity: SeverityError, Text: "the encoding of the database is " + encoding,
			Means: "events with characters that it does not have are refused",
			Fix:   "move the data to a database that was created WITH ENCODING 'UTF8' TEMPLATE template0",
		})
	}
	if standby {
		found = append(found, Finding{
			Severity: SeverityError, Text: "this server is a standby: it is in recovery",
			Means: "nothing can be enqueued, claimed or listened for",
			Fix:   "connect to the primary: add target_session_attrs=read-write to the connection string",
		})
	} else if readOnly == "on" {
		found = append(found, Finding{
			Severity: SeverityError, Text: "default_transaction_read_only is on",
			Means: "enqueues, claims and leases fail",
			Fix: "ALTER ROLE CURRENT_USER RESET default_transaction_read_only; or the same for the database (ALTER " +
				"DATABASE), then reconnect",
		})
	}
	if fsync == "off" {
		found = append(found, Finding{
			Severity: SeverityError, Text: "fsync is off",
			Means: "a crash of the machine can destroy the database, committed events too",
			Fix:   "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();",
		})
	}
	if autovacuum == "off" || counts == "off" {
		found = append(found, Finding{
			Severity: SeverityError, Text: fmt.Sprintf("autovacuum is %s and track_counts is %s", autovacuum, counts),
			Means: "dead rows are never removed: claims, looks and leases get slower and slower",
			Fix:   "ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf();",
		})
	}
	return found, nil
}

// timeouts are the settings of a session that end its statements or itself, with the shortest value that does no harm.
// 0 means that any value is worth a notice.
var timeouts = []struct {
	name  string
	least time.Duration
	means string
}{
	{"statement_timeout", time.Second,
		"a claim or a prune is cut off while the database is busy, and is repeated for nothing"},
	{"lock_timeout", 100 * time.Millisecond,
		"an enqueue that waits for another with its dedupe key fails, and so does a claim during a migration"},
	{"idle_in_transaction_session_timeout", time.Second, "a handler of a transactional listener, or the code between " +
		"two statements of a business transaction, loses its connection"},
	{"transaction_timeout", 10 * time.Second,
		"business transactions and batches of transactional listeners lose their connection"},
	{"idle_session_timeout", 0,
		"the connection that listens for enqueues is closed when it is idle for that long, and is opened again"},
}

// checkSettings: what the role, the database or the connection string set for sessions.
func checkSettings(ctx context.Context, e *examination) (found []Finding, err error) {
	type setting struct{ Name, Value, Source string }
	within, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	// Not in a transaction of read, which changes settings.
	rows, err := rowsOf[setting](within, e.pool, `SELECT name, coalesce(reset_val, ''), source FROM pg_catalog.pg_settings
		WHERE name IN ('default_transaction_isolation', 'synchronous_commit', 'statement_timeout', 'lock_timeout',
			'idle_in_transaction_session_timeout', 'transaction_timeout', 'idle_session_timeout') ORDER BY name`)
	for _, s := range rows {
		switch {
		case s.Name == "default_transaction_isolation":
			if s.Value != "read committed" {
				found = append(found, Finding{
					Severity: SeverityNotice,
					Text:     fmt.Sprintf("default_transaction_isolation is %s (from: %s)", s.Value, s.Source),
					Means: "outboxgen uses read committed for itself, but transactions that enqueue may end with " +
						"ErrSerialization and must be run again",
					Fix: "ALTER ROLE CURRENT_USER SET default_transaction_isolation = 'read committed'; " +
						"unless the application wants it",
				})
			}
		case s.Name == "synchronous_commit":
			if s.Value == "off" {
				found = append(found, Finding{
					Severity: SeverityNotice, Text: fmt.Sprintf("synchronous_commit is off (from: %s)", s.Source),
					Means: "outboxgen sets it on for itself, but a crash may undo business transactions that were reported as " +
						"committed, with their events",
					Fix: "ALTER ROLE CURRENT_USER SET synchronous_commit = on; unless the application wants it",
				})
			}
		default:
			ms, err := strconv.ParseInt(s.Value, 10, 64)
			if err != nil || ms == 0 {
				continue
			}
			for _, t := range timeouts {
				set := time.Duration(ms) * time.Millisecond
				if t.name != s.Name || t.least > 0 && set >= t.least {
					continue
				}
				f := Finding{
					Severity: SeverityWarning, Text: fmt.Sprintf("%s is %v (from: %s)", t.name, set, s.Source),
					Means: t.means,
					Fix: fmt.Sprintf("ALTER ROLE CURRENT_USER SET %s = '%v'; then reconnect", t.name,
						max(t.least, 10*time.Second)),
				}
				if t.least == 0 {
					f.Severity, f.Fix = SeverityNotice, fmt.Sprintf("ALTER ROLE CURRENT_USER SET %s = 0; then reconnect", t.name)
				}
				found = append(found, f)
			}
		}
	}
	return found, err
}

// clockBound is the difference of clocks that is worth a notice.
const clockBound = time.Second

// checkClock: the clocks of the database and of this process agree.
func checkClock(ctx context.Context, e *examination) ([]Finding, error) {
	var found []Finding
	err := e.read(ctx, func(ctx context.Context, tx pgx.Tx, _ *queries.Queries) error {
		var there time.Time
		before := time.Now()
		if err := tx.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&there); err != nil {
			return err
		}
		found = clockFinding(before, time.Now(), there)
		return nil
	})
	return found, err
}

// clockFinding compares there, the time of the database, with that of this process before and after it was read.
func clockFinding(before, after, there time.Time) []Finding {
	half := after.Sub(before) / 2
	ahead := there.Sub(before.Add(half)).Round(time.Millisecond)
	if ahead.Abs()-half <= clockBound {
		return nil
	}
	text := fmt.Sprintf("the clock of the database is %v ahead of that of this process", ahead)
	if ahead < 0 {
		text = fmt.Sprintf("the clock of the database is %v behind that of this process", -ahead)
	}
	return []Finding{{
		Severity: SeverityNotice, Text: text,
		Means: "NotBefore and retries are timed by the database, so they seem early or late; ids of events are not in the " +
			"order of their times. Nothing else relies on it",
		Fix: "synchronize the clocks with NTP or chrony",
	}}
}

// What a dispatcher takes of its pool, apart from its handlers, and the handlers that it runs by default.
const (
	dispatcherConnections = 4
	defaultConcurrency    = 10
)

// checkConnections: the server has connections left, and the pool of the application suffices.
func checkConnections(ctx context.Context, e *examination) (found []Finding, err error) {
	type limit struct {
		Name      string
		Used, Max int64
	}
	var limits []limit
	err = e.read(ctx, func(ctx context.Context, tx pgx.Tx, _ *queries.Queries) error {
		limits, err = rowsOf[limit](ctx, tx, `
			WITH clients AS (SELECT a.datname, a.usename FROM pg_catalog.pg_stat_activity AS a WHERE a.datname IS NOT NULL)
			SELECT 'max_connections', (SELECT count(*) FROM clients),
				(current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer)::bigint
			UNION ALL
			SELECT 'the connection limit of database ' || d.datname,
				(SELECT count(*) FROM clients AS c WHERE c.datname = d.datname), d.datconnlimit::bigint
			FROM pg_catalog.pg_database AS d WHERE d.datname = current_database() AND d.datconnlimit > 0
			UNION ALL
			SELECT 'the connection limit of role ' || r.rolname,
				(SELECT count(*) FROM clients AS c WHERE c.usename = r.rolname), r.rolconnlimit::bigint
			FROM pg_catalog.pg_roles AS r WHERE r.rolname = session_user AND r.rolconnlimit > 0`)
		return err
	})
	size := int64(e.cfg.PoolSize)
	for _, l := range limits {
		severity := SeverityWarning
		switch {
		case l.Used*100 < l.Max*80:
			if size > l.Max {
				found = append(found, Finding{
					Severity: SeverityWarning,
					Text:     fmt.Sprintf("the pool may open %d connections, and %s allows %d", size, l.Name, l.Max),
					Means:    "connections are refused when the pool grows",
					Fix:      "make the pool smaller, raise the limit, or put a pooler in front",
				})
			}
			continue
		case l.Used*100 >= l.Max*95:
			severity = SeverityError
		}
		found = append(found, Finding{
			Severity: severity, Text: fmt.Sprintf("%d of %d connections are used, as %s allows", l.Used, l.Max, l.Name),
			Means: "new processes and renewals of leases may not get a connection",
			Fix:   "close what is not needed, make pools smaller, raise the limit, or put a pooler in front",
		})
	}
	if size > 0 && size < dispatcherConnections+1 {
		found = append(found, Finding{
			Severity: SeverityWarning, Text: fmt.Sprintf("the pool has %d connections", size),
			Means: "a dispatcher uses up to four at the same time, and its handlers use their own: renewals of leases may " +
				"wait until a lease has run out",
			Fix: "raise MaxConns to Concurrency + 4",
		})
	} else if size > 0 && size < dispatcherConnections+defaultConcurrency {
		found = append(found, Finding{
			Severity: SeverityNotice, Text: fmt.Sprintf("the pool has %d connections", size),
			Means: fmt.Sprintf("a dispatcher with the default Concurrency of %d uses up to %d if each handler uses one",
				defaultConcurrency, dispatcherConnections+defaultConcurrency),
			Fix: "raise MaxConns to Concurrency + 4, or lower Concurrency",
		})
	}
	return found, err
}
