package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// auditSQL makes triggers record what happens to the rows of the queue and to the limits, in the transactions in which it
// happens, and a table in which handlers record their calls. asked is when the statement came to the server.
//
// A lease begins at the time of its row, or later, and ends at the time of its row, or later: when the transaction commits. A
// claim that may count on the end of a lease begins after that commit. So leases that are allowed do not overlap in these
// times either.
const auditSQL = `
CREATE SCHEMA audit;
CREATE TABLE audit.changes (
	no bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL, asked timestamptz NOT NULL, id uuid NOT NULL, topic text NOT NULL,
	turn text NOT NULL, was_claim bigint NOT NULL, was_leased boolean NOT NULL, claim bigint NOT NULL, until timestamptz, due timestamptz);
CREATE TABLE audit.limits (
	no bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL, topic text NOT NULL, per text NOT NULL, concurrency int, rate int,
	period interval, set_concurrency int, set_rate int, set_until timestamptz);
CREATE TABLE audit.calls (
	no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id uuid NOT NULL, attempt int NOT NULL, topic text NOT NULL, worker text NOT NULL,
	key text NOT NULL, began timestamptz NOT NULL, clock timestamptz NOT NULL,
	recorded timestamptz NOT NULL DEFAULT clock_timestamp(), ended timestamptz);
CREATE FUNCTION audit.change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_OP = 'DELETE' THEN
		INSERT INTO audit.changes (at, asked, id, topic, turn, was_claim, was_leased, claim, until, due)
		VALUES (clock_timestamp(), statement_timestamp(), OLD.id, OLD.topic, coalesce(OLD.turn, ''), OLD.claim_no, OLD.locked_until IS NOT NULL, OLD.claim_no, NULL, NULL);
	ELSIF TG_OP = 'INSERT' THEN
		INSERT INTO audit.changes (at, asked, id, topic, turn, was_claim, was_leased, claim, until, due)
		VALUES (clock_timestamp(), statement_timestamp(), NEW.id, NEW.topic, coalesce(NEW.turn, ''), 0, false, NEW.claim_no, NEW.locked_until, NEW.next_attempt_at);
	ELSE
		INSERT INTO audit.changes (at, asked, id, topic, turn, was_claim, was_leased, claim, until, due)
		VALUES (clock_timestamp(), statement_timestamp(), NEW.id, NEW.topic, coalesce(NEW.turn, ''), OLD.claim_no, OLD.locked_until IS NOT NULL, NEW.claim_no, NEW.locked_until,
			NEW.next_attempt_at);
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON outbox.queue FOR EACH ROW EXECUTE FUNCTION audit.change();
CREATE FUNCTION audit.declare() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_OP = 'DELETE' THEN
		INSERT INTO audit.limits (at, topic, per) VALUES (clock_timestamp(), OLD.topic, OLD.per);
	ELSE
		INSERT INTO audit.limits (at, topic, per, concurrency, rate, period, set_concurrency, set_rate, set_until)
		VALUES (clock_timestamp(), NEW.topic, NEW.per, NEW.concurrency, NEW.rate, NEW.period, NEW.set_concurrency, NEW.set_rate, NEW.set_until);
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON outbox.limits FOR EACH ROW EXECUTE FUNCTION audit.declare();`

// change is what a statement did to a row of the queue.
type change struct {
	At, Asked time.Time
	ID        uuid.UUID
	Topic     string
	Turn      string
	WasClaim  int64
	WasLeased bool
	Claim     int64
	Until     time.Time // of the lease; zero if it has none
	Due       time.Time // zero if the row is gone
}

// begins reports whether a lease begins with c, and whether one ends. Both are so if it is claimed again after its lease
// ran out.
func (c *change) begins() (begins, ends bool) {
	leased, other := !c.Until.IsZero(), c.Claim != c.WasClaim
	return leased && (!c.WasLeased || other), c.WasLeased && (!leased || other)
}

// declared are limits from a time on.
type declared struct {
	At                      time.Time
	Topic, Per              string
	Concurrency, Rate       int // 0 means none
	Period                  time.Duration
	SetConcurrency, SetRate int
	SetUntil                time.Time
}

// handled is a call of a handler, which began by the clock of the machine. That is also the clock of the database.
type handled struct {
	Key            string
	Began          time.Time
	Recorded, Over time.Time // by the database
}

// history is what audit has recorded of one topic in some time.
type history struct {
	Changes []change
	Limits  []declared
}

// judge returns what a referee finds in the whole history of a topic.
func judge(t testing.TB, pool *pgxpool.Pool, topic string, limits []outbox.Limit) findings {
	t.Helper()
	r := refereeOf(topic, limits)
	if h := histories(t, pool, "SELECT %s FROM %s")[topic]; h != nil {
		r.check(h)
	}
	r.checkCalls(readCalls(t, pool, topic))
	return r.result
}

// takeHistories takes the complete part of the histories of all topics out of the tables. What a transaction does that has
// not ended yet is later than its beginning. The second is for one that is about to begin.
func takeHistories(t testing.TB, pool *pgxpool.Pool) (all map[string]*history) {
	t.Helper()
	to := pgtest.Value[time.Time](t, pool,
		"SELECT least(min(xact_start), now()) - interval '1 s' FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = current_database()")
	return histories(t, pool, "WITH gone AS (DELETE FROM %[2]s WHERE at < $1 RETURNING *) SELECT %[1]s FROM gone", to)
}

// histories reads histories by topic with a query to which the columns and the table are added.
func histories(t testing.TB, pool *pgxpool.Pool, query string, args ...any) (all map[string]*history) {
	t.Helper()
	all = make(map[string]*history)
	of := func(topic string) *history {
		if all[topic] == nil {
			all[topic] = new(history)
		}
		return all[topic]
	}
	read := func(columns, table, order string, row func(pgx.CollectableRow) error) {
		rows, err := pool.Query(t.Context(), fmt.Sprintf(query, columns, table)+" ORDER BY "+order, args...)
		require.NoError(t, err)
		_, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (struct{}, error) { return struct{}{}, row(r) })
		require.NoError(t, err)
	}
	read("at, asked, id, topic, turn, was_claim, was_leased, claim, coalesce(until, '0001-01-01 UTC'), coalesce(due, '0001-01-01 UTC')",
		"audit.changes", "at, until IS NOT NULL, no", func(r pgx.CollectableRow) error {
			c, err := pgx.RowToStructByPos[change](r)
			h := of(c.Topic)
			h.Changes = append(h.Changes, c)
			return err
		})
	read(`at, topic, per, coalesce(concurrency, 0), coalesce(rate, 0), coalesce(period, '0'), coalesce(set_concurrency, 0), coalesce(set_rate, 0),
		coalesce(set_until, '0001-01-01 UTC')`, "audit.limits", "at, no", func(r pgx.CollectableRow) error {
		l, err := pgx.RowToStructByPos[declared](r)
		h := of(l.Topic)
		h.Limits = append(h.Limits, l)
		return err
	})
	return all
}

// readCalls reads what handlers have recorded of a topic.
func readCalls(t testing.TB, pool *pgxpool.Pool, topic string) []handled {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		SELECT key, began, recorded, coalesce(ended, '0001-01-01 UTC') FROM audit.calls WHERE topic = $1 ORDER BY began, no`, topic)
	require.NoError(t, err)
	calls, err := pgx.CollectRows(rows, pgx.RowToStructByPos[handled])
	require.NoError(t, err)
	return calls
}

// audit installs the triggers.
func audit(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Execute(t, pool, auditSQL)
}
